package region

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/nth-project/nth/test/internal/lab"
)

// Letters is the queue's dead-letter queue.
type Letters struct {
	peer *peer
	url  string
}

// LeaveToDeadLetters gives the queue a dead-letter queue: a message that has been received so many times goes there when
// it would be received once more.
func (r *Region) LeaveToDeadLetters(t lab.TB, receives int) *Letters {
	t.Helper()
	letters, err := r.peer.deadLetters(t.Context(), r.QueueURL, fmt.Sprintf("dead-letters-%d", queues.Add(1)), receives)
	if err != nil {
		t.Fatalf("%v", err)
	}
	return letters
}

func (p *peer) deadLetters(ctx context.Context, queue, name string, receives int) (*Letters, error) {
	url, err := p.createQueue(ctx, name)
	if err != nil {
		return nil, err
	}
	var answer struct{ Attributes struct{ QueueARN string } }
	err = p.call(ctx, "GetQueueAttributes", map[string]any{"QueueUrl": url, "AttributeNames": []string{"QueueArn"}}, &answer)
	if err != nil {
		return nil, err
	}
	policy, err := json.Marshal(map[string]any{"deadLetterTargetArn": answer.Attributes.QueueARN, "maxReceiveCount": receives})
	if err != nil {
		return nil, err
	}
	return &Letters{p, url}, p.call(ctx, "SetQueueAttributes", map[string]any{
		"QueueUrl": queue, "Attributes": map[string]string{"RedrivePolicy": string(policy)},
	}, &struct{}{})
}

// Read returns the messages that are there.
func (l *Letters) Read(t lab.TB) []Message { return l.peer.glance(t, l.url) }

// Glance returns the messages that can be seen, as others see them who do nothing with them: the handles that consumers
// have are stale from then on, and for some seconds nobody sees the messages.
func (r *Region) Glance(t lab.TB) []Message { return r.peer.glance(t, r.QueueURL) }

func (p *peer) glance(t lab.TB, queue string) []Message {
	t.Helper()
	var all []Message
	for {
		m, found, err := p.receive(t.Context(), queue, 5)
		if err != nil {
			t.Fatalf("%v", err)
		}
		if !found || slices.ContainsFunc(all, func(known Message) bool { return known.ID == m.ID }) {
			return all
		}
		all = append(all, m)
	}
}

// Count returns how many messages are there.
func (l *Letters) Count(t lab.TB) int {
	t.Helper()
	visible, inFlight, err := l.peer.count(t.Context(), l.url)
	if err != nil {
		t.Fatalf("%v", err)
	}
	return visible + inFlight
}
