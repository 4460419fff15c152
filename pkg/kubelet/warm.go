package kubelet

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nth-project/nth/pkg/apiserver"
)

// coldPause is the longest pause after a round that failed: what is cold is wanted warm before the next notice.
const coldPause = 10 * time.Second

// KeepWarm uses the identity about every so often until ctx ends, beginning at once, so that a connection, a token and
// a certificate are ready when they are needed and a replaced kubeconfig is noticed. After a round that failed it looks
// again soon. tell hears how each round ended, nil meaning warm; it is told from this goroutine.
func (k *Kubelet) KeepWarm(ctx context.Context, every time.Duration, tell func(error)) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		err := k.warm(ctx)
		if ctx.Err() != nil {
			return
		}
		tell(err)
		pause := every
		if err != nil {
			pause = min(every, coldPause)
		}
		timer.Reset(jitter(pause))
	}
}

// warm makes one cheap request with the identity.
func (k *Kubelet) warm(ctx context.Context) error {
	_, looking := k.begin(ctx)
	trouble := looking.wait(ctx) // nobody waits for this round
	id := k.identity()
	if id.Client == nil {
		return trouble
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	// Version "0" is answered from the API server's memory. A node that is not there yet, or no more, is an answer, too.
	_, err := id.Client.CoreV1().Nodes().Get(ctx, id.Node, meta.GetOptions{ResourceVersion: "0"})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("reading node %q with the credential in %s: %w", id.Node, id.Source, apiserver.OneLine(err))
	}
	return trouble
}

// jitter spreads a pause by a tenth to either side, so that a fleet's nodes do not ask in step.
func jitter(pause time.Duration) time.Duration {
	return pause - pause/10 + rand.N(pause/5+1)
}
