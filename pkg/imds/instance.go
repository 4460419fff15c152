package imds

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/nth-project/nth/pkg/event"
)

const (
	instancePath = "instance-id"
	// lifeCyclePath is how the instance was bought: spot, on-demand, and others. It never changes.
	lifeCyclePath = "instance-life-cycle"
	// identityPath is the signed description of the instance, as JSON, and the only document with the account.
	identityPath = "dynamic/instance-identity/document"
)

// notSpot are the life cycles that, as EC2 documents, get neither spot interruptions nor rebalance recommendations.
// Other life cycles may get them.
var notSpot = []string{"on-demand", "scheduled", "capacity-block"}

// Scope is what is polled on an instance, depending on its life cycle.
type Scope struct {
	// LifeCycle is the instance's; empty while it is unknown.
	LifeCycle string
	// Standby is set if Options.LifeCycles rules the instance out: nothing is polled then.
	Standby bool
	// Kinds are the kinds that are polled.
	Kinds []event.Kind
	// Seldom are those of Kinds that are not to be expected on such an instance. They are polled every SeldomInterval.
	Seldom []event.Kind
}

// String is the scope in one sentence.
func (s Scope) String() string {
	switch {
	case s.Standby:
		return fmt.Sprintf("standing by: %s instances are excluded by imds.life_cycles, nothing is polled", s.LifeCycle)
	case len(s.Kinds) == 0:
		return fmt.Sprintf("%s instance, nothing is polled", s.LifeCycle)
	default:
		var often, seldom []string
		for _, kind := range s.Kinds {
			if slices.Contains(s.Seldom, kind) {
				seldom = append(seldom, string(kind))
			} else {
				often = append(often, string(kind))
			}
		}
		var polled []string
		if len(often) > 0 {
			polled = append(polled, "for "+strings.Join(often, ", "))
		}
		if len(seldom) > 0 {
			polled = append(polled, fmt.Sprintf("every %s for what such instances are not sent: %s", SeldomInterval, strings.Join(seldom, ", ")))
		}
		return fmt.Sprintf("%s instance, polling %s", s.LifeCycle, strings.Join(polled, "; "))
	}
}

// Scope returns what is polled on instances of a life cycle; everything if that is not known ("").
func (s *Source) Scope(lifeCycle string) Scope {
	scope := Scope{LifeCycle: lifeCycle}
	if lifeCycle != "" && len(s.opts.LifeCycles) > 0 && !slices.Contains(s.opts.LifeCycles, lifeCycle) {
		scope.Standby = true
		return scope
	}
	for _, kind := range event.PolledKinds() {
		if !slices.Contains(s.opts.Kinds, kind) {
			continue
		}
		scope.Kinds = append(scope.Kinds, kind)
		spotOnly := kind == event.SpotInterruption || kind == event.RebalanceRecommendation
		if spotOnly && slices.Contains(notSpot, lifeCycle) {
			scope.Seldom = append(scope.Seldom, kind)
		}
	}
	return scope
}

// askLifeCycle retries until the life cycle is known, and sends it. An absent document (some simulators have none) is
// retried like a failed one; nothing waits for it.
func (s *Source) askLifeCycle(ctx context.Context, known chan<- string) {
	reader := s.newReader(s.oneOff)
	asking := cadence{interval: DefaultUrgentInterval, most: longestPause}
	for failures := 1; ; failures++ {
		if lifeCycle, err := read(ctx, reader, lifeCyclePath, shortDocument, parseLifeCycle); err == nil && lifeCycle != "" {
			known <- lifeCycle
			return
		}
		if !sleep(ctx, asking.next(failures)) {
			return
		}
	}
}

var lifeCycleShape = regexp.MustCompile(`^[a-z][a-z-]{0,63}$`)

func parseLifeCycle(body []byte) (string, error) {
	lifeCycle := strings.TrimSpace(string(body))
	if !lifeCycleShape.MatchString(lifeCycle) {
		return "", fmt.Errorf("%d bytes that are no life cycle", len(body))
	}
	return lifeCycle, nil
}

// Instance is what the service says about the machine. What it does not have, or could not tell, is empty.
type Instance struct {
	ID        string // such as "i-1234567890abcdef0"
	Type      string // such as "m5.large"
	LifeCycle string // such as "spot"
	Image     string // the AMI's ID
	Account   string
	Region    string
	Zone      string // such as "us-east-1a"
	// The addresses and names of the primary interface.
	LocalIP, LocalName, PublicIP, PublicName string
}

// Instance requests the machine's description, once, each item by itself. It returns all that it could read, and the
// errors of what failed. It may take seconds if the service hangs; ctx bounds that.
func (s *Source) Instance(ctx context.Context) (Instance, error) {
	var i Instance
	reader := s.newReader(s.oneOff)
	var errs []error
	for _, item := range []struct {
		path  string
		parse func([]byte) (string, error)
		into  *string
	}{
		{instancePath, parseText, &i.ID},
		{"instance-type", parseText, &i.Type},
		{lifeCyclePath, parseLifeCycle, &i.LifeCycle},
		{"ami-id", parseText, &i.Image},
		{identityPath, parseAccount, &i.Account},
		{"placement/region", parseText, &i.Region},
		{"placement/availability-zone", parseText, &i.Zone},
		{"local-ipv4", parseText, &i.LocalIP},
		{"local-hostname", parseText, &i.LocalName},
		{"public-ipv4", parseText, &i.PublicIP},
		{"public-hostname", parseText, &i.PublicName},
	} {
		value, err := read(ctx, reader, item.path, shortDocument, item.parse)
		*item.into = value
		errs = append(errs, err)
	}
	return i, errors.Join(errs...)
}

// line is what a document of one line may be: an ID, a name, an address.
var line = regexp.MustCompile(`^[!-~]{0,255}$`)

// parseText reads a document of one line.
func parseText(body []byte) (string, error) {
	text := strings.TrimSpace(string(body))
	if !line.MatchString(text) {
		return "", fmt.Errorf("%d bytes that are no line of text", len(body))
	}
	return text, nil
}

func parseAccount(body []byte) (string, error) {
	var doc struct{ AccountID string }
	if err := decode(body, &doc); err != nil {
		return "", err
	}
	return parseText([]byte(doc.AccountID))
}
