package traffic

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/nth-project/nth/test/internal/lab"
	"github.com/nth-project/nth/test/internal/node"
)

// A Way is a way to lose a node.
type Way struct {
	// Name is what it is called in the table.
	Name string
	// Acts says that something drains the node for the notice.
	Acts bool

	node   node.Options
	handle func(ctx context.Context, s *scene) error // takes the place of a handler, and ends with the machine
	button bool                                      // at the end the power button is pressed; else the power is cut
}

// The ways, from the worst to ours.
var (
	// Nobody does anything, and the machine is gone at the deadline.
	Nobody = Way{Name: "nobody"}
	// Kubelet is what a node does whose kubelet shuts down gracefully, as it does on EKS's images: it does not know of
	// the notice, and ends the pods when the power button is pressed at the deadline.
	Kubelet = Way{
		Name:   "the kubelet's graceful shutdown",
		node:   node.Options{ShutdownGrace: 150 * time.Second, CriticalGrace: 30 * time.Second},
		button: true,
	}
	// Handler is a handler that runs in a container and has the rights to drain its node: aws-node-termination-handler. It
	// looks at the metadata service every two seconds, and calls what "kubectl drain" calls.
	Handler = Way{Name: "a handler in a container", Acts: true, handle: drainWithKubectl}
	// Nth is nth with its defaults.
	Nth = Way{Name: "nth", Acts: true, node: node.Options{Nth: true}}
)

// handlerLooksEvery is the pause between two looks of aws-node-termination-handler at the metadata service.
const handlerLooksEvery = 2 * time.Second

// drainWithKubectl drains the node with an administrator's rights until ctx ends. It begins when the notice is there.
func drainWithKubectl(ctx context.Context, s *scene) error {
	select {
	case <-time.After(rand.N(handlerLooksEvery)): // any moment between two looks is as likely as another
	case <-ctx.Done():
		return nil
	}
	drain := s.cp.KubectlCommand(ctx, "drain", s.doomed.Node.Name,
		"--ignore-daemonsets", "--delete-emptydir-data", "--force", "--grace-period=-1", "--timeout=120s")
	if said, err := drain.CombinedOutput(); err != nil && ctx.Err() == nil { // The handler goes with the machine.
		return fmt.Errorf("running kubectl drain: %w\n%s", err, said)
	}
	return nil
}

// lose takes the machine from the node, as the way has it. It returns at once.
func (w Way) lose(t lab.TB, n *node.Node) {
	t.Helper()
	if w.button {
		n.Try(t, "systemctl", "poweroff") // may not live to tell its status
		return
	}
	n.CutPower(t)
}
