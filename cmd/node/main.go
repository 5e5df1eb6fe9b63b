// Command node is the data plane: it runs one node of a topology from its
// configuration files.
package main

import (
	"os"

	"github.com/tributary-dev/tributary/internal/node"
)

func main() { os.Exit(node.Main(os.Args[1:], os.Stderr)) }
