package main

import (
	"io"

	"github.com/nth-project/nth/cmd/internal/checks"
	"github.com/nth-project/nth/pkg/config"
)

// Run is the whole program but for its exit.
var Run = service().Run

// CheckOwner is what "check" says of the cluster's name, where its Nodes' instances are tagged with those.
func CheckOwner(to io.Writer, settings config.Fleet, names ...string) {
	(&check{checks.For("nth-queue", to)}).owner(settings, names)
}
