package main

import (
	"strings"
	"testing"
)

func TestDemo_EndsWithADrainedNode(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir()) // which the demo changes
	var out strings.Builder
	if err := give(t.Context(), &out); err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	for _, want := range []string{"EC2      announces", "cluster  cordoned", "nth      disruption budget", " 7 pods gone, nothing left"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("it does not show %q:\n%s", want, &out)
		}
	}
}
