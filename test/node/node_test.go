package node_test

import (
	"os"
	"testing"

	"github.com/nth-project/nth/test/internal/lab"
)

func TestMain(m *testing.M) { os.Exit(lab.Main(m, 4)) }
