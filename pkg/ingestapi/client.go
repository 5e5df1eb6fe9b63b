package ingestapi

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/sources/ingest"
)

// Client writes to a node over HTTP. It is safe for concurrent use.
type Client struct {
	// URL of the node, such as http://node:8080; without a scheme it is http.
	URL string
	// Token says who writes; empty where nobody asks.
	Token string
	// HTTP sends the requests; nil: http.DefaultClient.
	HTTP *http.Client
}

// Write commits a batch. It is sent once: a batch with a Key can be sent again
// after any error. What the node refuses is an *ingest.Error; of any other error
// it is not known whether the batch was written.
func (c *Client) Write(ctx context.Context, b *ingest.Batch) (ingest.Result, error) {
	body, err := encode(b)
	if err != nil {
		return ingest.Result{}, err
	}
	url := strings.TrimSuffix(c.URL, "/") + "/v1/write"
	if !strings.Contains(c.URL, "://") {
		url = "http://" + url
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return ingest.Result{}, err
	}
	req.Header.Set("Content-Type", "application/json")
	if c.Token != "" {
		req.Header.Set("Authorization", "Bearer "+c.Token)
	}
	hc := c.HTTP
	if hc == nil {
		hc = http.DefaultClient
	}
	res, err := hc.Do(req)
	if err != nil {
		return ingest.Result{}, err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(io.LimitReader(res.Body, 1<<20))
	if err != nil {
		return ingest.Result{}, err
	}
	if res.StatusCode != http.StatusOK {
		var f faultDoc
		if json.Unmarshal(text, &f) != nil || f.Code == "" {
			return ingest.Result{}, fmt.Errorf("POST %s: %s, and no answer of a node's write API: see that the address is that of a node with an ingest source", url, res.Status)
		}
		e := &ingest.Error{Code: ingest.Code(f.Code), Op: -1, Err: fmt.Errorf("%s", f.Error)}
		return ingest.Result{}, e
	}
	var d resultDoc
	if err := json.Unmarshal(text, &d); err != nil {
		return ingest.Result{}, fmt.Errorf("POST %s: the answer cannot be read: %w", url, err)
	}
	epoch, err := strconv.ParseUint(d.Epoch, 10, 64)
	if err != nil {
		return ingest.Result{}, fmt.Errorf("POST %s: the answer has no epoch: %w", url, err)
	}
	at, err := time.Parse(timeForm, d.Time)
	if err != nil {
		return ingest.Result{}, fmt.Errorf("POST %s: the answer has no time: %w", url, err)
	}
	return ingest.Result{
		Log: engine.LogID{Origin: d.Origin, Epoch: engine.Epoch(epoch)}, Position: engine.Position(d.Position),
		Time: engine.TimeOf(at), Rows: d.Rows, Repeated: d.Repeated,
	}, nil
}
