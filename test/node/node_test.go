package node_test

import (
	"os"
	"testing"

	"github.com/nth-project/nth/test/internal/node"
)

func TestMain(m *testing.M) { os.Exit(node.Main(m, 4)) }
