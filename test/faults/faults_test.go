// Package faults breaks what nth depends on, one thing at a time, and judges what it does meanwhile and after: the
// metadata service, the API server and the way to it, the credential, and the disk.
//
// All tests share one control plane; each has a node, a metadata service, a daemon and, where the API server has to
// fail, a proxy of its own. A fault is held until nth has met it often enough, and never for a time.
package faults_test

import (
	"os"
	"testing"

	"github.com/nth-project/nth/test/internal/lab"
)

func TestMain(m *testing.M) { os.Exit(lab.Main(m, 8)) }
