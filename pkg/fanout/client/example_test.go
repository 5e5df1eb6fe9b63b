package client_test

import (
	"context"
	"fmt"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/fanout/client"
)

func ExampleNew() {
	c, err := client.New(client.WithUpstreams("edge-a.example:7400", "edge-b.example:7400"))
	if err != nil {
		panic(err)
	}
	defer c.Close()
	c.Listen(func(old, fresh *engine.Record) {
		switch {
		case old == nil:
			fmt.Println("new in", fresh.Schema.Table)
		case fresh == nil:
			fmt.Println("gone from", old.Schema.Table)
		}
	})
	if err := c.AwaitReady(context.Background()); err != nil {
		panic(err)
	}
	row, ok, err := c.Get(engine.TableName{Schema: "public", Name: "orders"}, "42")
	fmt.Println(row.Stamp, ok, err)
}
