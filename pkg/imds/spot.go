package imds

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nth-project/nth/pkg/event"
)

// spotPath is the notice of a spot interruption:
//
//	{"action": "terminate", "time": "2017-09-18T08:22:00Z"}
//
// It is absent until EC2 wants the instance back. The action is what EC2 does with it (terminate, stop or hibernate), and
// the time is about when.
const spotPath = "spot/instance-action"

// spotActions are the actions that EC2 documents.
var spotActions = []string{"terminate", "stop", "hibernate"}

// spot looks for the notice.
func spot(c *client) look {
	return func(ctx context.Context) (reading, error) { return read(ctx, c, spotPath, parseSpot) }
}

// parseSpot reads the notice. A known action or a readable time makes it one: an interruption that is half understood
// is still an interruption, and what is wrong with it becomes the reading's flaw. With neither, it is an error.
func parseSpot(body []byte) (reading, error) {
	var doc struct{ Action, Time string }
	if err := decode(body, &doc); err != nil {
		return reading{}, err
	}
	action := strings.TrimSpace(doc.Action)
	at, err := parseTime(doc.Time)
	if err != nil && !slices.Contains(spotActions, action) {
		return reading{}, fmt.Errorf("neither the action %q nor the time %q can be read", doc.Action, doc.Time)
	}
	e := event.Event{Kind: event.SpotInterruption, Code: action, State: event.Pending, Deadline: at}
	if err != nil {
		e.ID = contentID(e.Kind, action, doc.Time)
		return reading{[]event.Event{e}, fmt.Errorf("reading %q: its time: %w", spotPath, err)}, nil
	}
	e.ID = contentID(e.Kind, action, at.Format(time.RFC3339Nano))
	if action == "" {
		return reading{[]event.Event{e}, fmt.Errorf("reading %q: it names no action", spotPath)}, nil
	}
	return reading{events: []event.Event{e}}, nil
}

// decode reads JSON, of which unknown fields are ignored and fields of the wrong type stay empty: the caller judges
// what it needs. What is no JSON at all is an error.
func decode(body []byte, into any) error {
	err := json.Unmarshal(body, into)
	if wrongType := new(json.UnmarshalTypeError); err != nil && !errors.As(err, &wrongType) {
		return fmt.Errorf("decoding %d bytes: %w", len(body), err)
	}
	return nil
}

// parseTime reads a time as spot and rebalance documents give it, in UTC.
func parseTime(text string) (time.Time, error) {
	at, err := time.Parse(time.RFC3339, strings.TrimSpace(text))
	if err != nil {
		return time.Time{}, fmt.Errorf("%q is no time like 2017-09-18T08:22:00Z", text)
	}
	return at.UTC(), nil
}

// contentID is the identity of an event whose document has none: its kind, and a digest of what it says.
func contentID(kind event.Kind, content ...string) string {
	digest := sha256.Sum256([]byte(strings.Join(content, "\n")))
	return string(kind) + "-" + hex.EncodeToString(digest[:8])
}
