package client_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/engine/store"
	"github.com/tributary-dev/tributary/pkg/fanout/client"
	ft "github.com/tributary-dev/tributary/pkg/fanout/fanouttest"
	"github.com/tributary-dev/tributary/pkg/fanout/scope"
	"github.com/tributary-dev/tributary/pkg/fanout/server"
)

// exampleNode starts a node with a table public.cities: id, and v, its country.
func exampleNode() (address string, origin *ft.Origin, stop func()) {
	origin = ft.NewOrigin(0, "cities")
	for city, country := range map[string]string{"berlin": "DE", "bonn": "DE", "graz": "AT", "lyon": "FR"} {
		origin.Put(city, country)
	}
	quiet := slog.New(slog.DiscardHandler)
	e := engine.New(engine.Options{NodeID: "node", Store: store.NewMemory(store.MemoryOptions{}), Logger: quiet})
	e.AddSource("db", origin, engine.Keep{})
	s := server.New(server.Config{Host: e, Logger: quiet})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() { _ = e.Run(ctx) })
	done.Go(func() { _ = s.Serve(l) })
	return l.Addr().String(), origin, func() {
		s.Close()
		cancel()
		done.Wait()
	}
}

func Example() {
	address, _, stop := exampleNode()
	defer stop()
	ctx := context.Background()
	cities := engine.TableName{Schema: "public", Name: "cities"}

	c, err := client.New(client.WithUpstreams(address), client.WithTables(cities))
	if err != nil {
		panic(err)
	}
	defer c.Close()
	if err := c.AwaitReady(ctx); err != nil {
		panic(err)
	}
	row, ok, err := c.Get(cities, "graz")
	country, _ := client.Text(&row, "v")
	fmt.Println(country, ok, err)
	// Output: AT true <nil>
}

func ExampleClient_Listen() {
	address, origin, stop := exampleNode()
	defer stop()
	c, err := client.New(client.WithUpstreams(address))
	if err != nil {
		panic(err)
	}
	defer c.Close()
	if err := c.AwaitReady(context.Background()); err != nil {
		panic(err)
	}
	heard := make(chan string)
	c.Listen(func(old, fresh *engine.Record) {
		switch {
		case old == nil:
			country, _ := client.Text(fresh, "v")
			heard <- "a new city in " + country
		case fresh == nil:
			id, _ := client.Text(old, "id")
			heard <- id + " is gone"
		}
	})
	origin.Put("linz", "AT")
	fmt.Println(<-heard)
	origin.Write(ft.Change{Table: ft.Table("cities"), Key: "bonn", Gone: true})
	fmt.Println(<-heard)
	// Output:
	// a new city in AT
	// bonn is gone
}

func ExampleClient_Index() {
	address, _, stop := exampleNode()
	defer stop()
	cities := engine.TableName{Schema: "public", Name: "cities"}
	c, err := client.New(client.WithUpstreams(address))
	if err != nil {
		panic(err)
	}
	defer c.Close()
	if err := c.AwaitReady(context.Background()); err != nil {
		panic(err)
	}

	byCountry, err := c.Index(cities, "v")
	if err != nil {
		panic(err)
	}
	defer byCountry.Close()
	rows, err := byCountry.Lookup("DE")
	if err != nil {
		panic(err)
	}
	for _, r := range rows {
		id, _ := client.Text(&r, "id")
		fmt.Println(id)
	}
	// Output:
	// berlin
	// bonn
}

func ExampleWithScope() {
	address, _, stop := exampleNode()
	defer stop()
	cities := engine.TableName{Schema: "public", Name: "cities"}

	german, err := scope.New(scope.Table{
		Name: cities, Columns: []string{}, Where: []scope.Condition{{Column: "v", Op: scope.Equal, Values: []string{"DE"}}},
	})
	if err != nil {
		panic(err)
	}
	c, err := client.New(client.WithUpstreams(address), client.WithScope(german))
	if err != nil {
		panic(err)
	}
	defer c.Close()
	if err := c.AwaitReady(context.Background()); err != nil {
		panic(err)
	}
	rows, err := c.All(cities)
	fmt.Println(len(rows), err)
	// Output: 2 <nil>
}

func ExampleWithSnapshotFile() {
	address, _, stop := exampleNode()
	defer stop()
	dir, err := os.MkdirTemp("", "cities")
	if err != nil {
		panic(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	cities := engine.TableName{Schema: "public", Name: "cities"}

	for range 2 { // the second goes on where the first was, and takes no snapshot
		c, err := client.New(client.WithUpstreams(address), client.WithSnapshotFile(filepath.Join(dir, "cities.snapshot")))
		if err != nil {
			panic(err)
		}
		if err := c.AwaitReady(context.Background()); err != nil {
			panic(err)
		}
		rows, err := c.All(cities)
		fmt.Println(len(rows), "cities", err)
		c.Close() // writes the file
	}
	// Output:
	// 4 cities <nil>
	// 4 cities <nil>
}
