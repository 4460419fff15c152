package imds_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/imds"
)

// TestWhatIsAnnouncedIsHeededWhateverTheLifeCycleSays asks a service that is shaped like amazon-ec2-metadata-mock with its
// defaults, started as "spot --action terminate": its life cycle is on-demand, and it computes the times anew at each look.
func TestWhatIsAnnouncedIsHeededWhateverTheLifeCycleSays(t *testing.T) {
	ec2 := serve(map[string]string{lifeCyclePath: "on-demand"})
	mock := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch now := time.Now().UTC(); {
		case strings.HasSuffix(r.URL.Path, spotPath):
			_, _ = fmt.Fprintf(w, "{\n\t\"action\": \"terminate\",\n\t\"time\": %q\n}", now.Add(2*time.Minute).Format(time.RFC3339))
		case strings.HasSuffix(r.URL.Path, rebalancePath):
			_, _ = fmt.Fprintf(w, "{\n\t\"noticeTime\": %q\n}", now.Format(time.RFC3339))
		default:
			ec2.ServeHTTP(w, r)
		}
	})
	var told []imds.Scope
	opts := imds.Options{Told: func(s imds.Scope) { told = append(told, s) }}
	bubble(t, opts, mock, func(t *testing.T, sink *sink) {
		time.Sleep(headStart)
		for _, kind := range []event.Kind{event.SpotInterruption, event.RebalanceRecommendation} {
			if events, _ := sink.last(kind); len(events) != 1 {
				t.Fatalf("%s: got %v at once, want what is announced", kind, events)
			}
		}
		time.Sleep(time.Minute)
		snapshots, troubles := sink.of(event.SpotInterruption)
		if len(snapshots) < 11 || len(snapshots) > 15 || len(troubles) > 0 {
			t.Errorf("%d looks and %d troubles in a minute, want one look every five seconds", len(snapshots), len(troubles))
		}
		for _, s := range snapshots {
			if len(s.events) != 1 || s.events[0].Code != "terminate" || s.events[0].Deadline.Sub(s.at) > 2*time.Minute {
				t.Errorf("got %+v", s.events)
			}
		}
		if len(told) != 1 || !strings.Contains(told[0].String(), "every 5s for what such instances are not sent: spot-interruption, rebalance-recommendation") {
			t.Errorf("told %v", told)
		}
	})
}
