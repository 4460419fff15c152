package drain_test

import (
	"encoding/json"
	"reflect"
	"testing"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"

	"github.com/nth-project/nth/pkg/drain"
)

// FuzzClaim holds for whatever anybody writes into the annotation: it is somebody's claim, or nobody's. What is a claim
// names its event, and is the same when nth has written it again.
func FuzzClaim(f *testing.F) {
	for _, text := range []string{
		`{"event":"spot-interruption-3f1c9a0b7d52e846","kind":"spot-interruption","boot_id":"6ae5f2c0","since":"2026-03-01T10:00:00Z"}`,
		`{"event":"a","since":"2026-03-01T10:00:00.123456789+23:59","more":[{}]}`,
		`{"event":"a","kind":7}`, `{"event":"","kind":"spot-interruption"}`, `{"EVENT":"a"}`, `null`, `[]`, ``, `{"event":"a"`,
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		claim, ours := claimOf(text)
		if !ours {
			if !reflect.DeepEqual(claim, drain.Claim{}) {
				t.Fatalf("%q is nobody's and %+v", text, claim)
			}
			return
		}
		if claim.Event == "" || !utf8.ValidString(claim.Event) || !json.Valid([]byte(text)) {
			t.Fatalf("%q is read as %+v", text, claim)
		}
		written, err := json.Marshal(claim)
		if err != nil {
			t.Fatalf("%q is read as %+v, which cannot be written: %v", text, claim, err)
		}
		again, ours := claimOf(string(written))
		if !ours || !again.Since.Equal(claim.Since) {
			t.Fatalf("%q is read as %+v, and written again as %+v", text, claim, again)
		}
		if again.Since = claim.Since; !reflect.DeepEqual(again, claim) {
			t.Fatalf("%q is read as %+v, and written again as %+v", text, claim, again)
		}
	})
}

func claimOf(text string) (drain.Claim, bool) {
	node := &corev1.Node{}
	node.Annotations = map[string]string{drain.CordonAnnotation: text}
	return drain.ReadClaim(node)
}
