package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tributary-dev/tributary/pkg/ingestapi"
)

func writeCommand() *cobra.Command {
	var url, file, key, tokenFile string
	var timeout time.Duration
	c := &cobra.Command{
		Use:   "write -f FILE",
		Short: "Write a batch to a node with an ingest source",
		Long: `write sends a batch of operations to a node's write API. All of it is applied
as one transaction, or nothing. With a key, in the file or by --key, it may be
sent again: what was committed before is not applied again.

The file is JSON, as for POST /v1/write:

  {"operations": [
    {"op": "put",    "table": "public.orders", "row": {"id": 1, "total": 12.50}},
    {"op": "set",    "table": "public.orders", "row": {"id": 2, "state": "paid"}},
    {"op": "add",    "table": "public.counts", "row": {"day": "2024-02-29", "n": 1}},
    {"op": "delete", "table": "public.orders", "row": {"id": 3}}]}`,
		Example: `  tributary write --node http://localhost:8080 -f batch.json --key order-1
  echo '{"operations": [{"op": "truncate", "table": "t"}]}' | tributary write -f -`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			in := c.InOrStdin()
			if file != "-" {
				f, err := os.Open(file)
				if err != nil {
					return err
				}
				defer f.Close()
				in = f
			}
			b, err := ingestapi.Decode(io.LimitReader(in, ingestapi.MaxBody))
			if err != nil {
				return fmt.Errorf("%s: %w", file, err)
			}
			if key != "" {
				b.Key = key
			}
			client := &ingestapi.Client{URL: url}
			if tokenFile != "" {
				token, err := os.ReadFile(tokenFile)
				if err != nil {
					return err
				}
				client.Token = strings.TrimSpace(string(token))
			}
			ctx, cancel := context.WithTimeout(c.Context(), timeout)
			defer cancel()
			res, err := client.Write(ctx, b)
			if err != nil {
				return err
			}
			what := "written"
			if res.Repeated {
				what = "had been written before"
			}
			fmt.Fprintf(c.OutOrStdout(), "%s %s: %s at %s, %s\n", plural(int(res.Rows), "row", "rows"), what, res.Log, res.Position, res.Time.Wall().Format(time.RFC3339Nano))
			return nil
		},
	}
	f := c.Flags()
	f.StringVar(&url, "node", "http://localhost:8080", "the node's web address, such as localhost:8080 or https://node.example")
	f.StringVarP(&file, "filename", "f", "", "file with the batch; - for standard input")
	f.StringVar(&key, "key", "", "idempotency key of the batch")
	f.StringVar(&tokenFile, "token-file", "", "file with the token that says who writes")
	f.DurationVar(&timeout, "timeout", time.Minute, "how long to wait for the commit")
	_ = c.MarkFlagRequired("filename")
	return c
}
