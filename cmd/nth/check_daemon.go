package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/nth-project/nth/cmd/internal/statusfile"
	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/kubelet"
	"github.com/nth-project/nth/pkg/record"
)

// daemonBegins is how long after its start a daemon may still be finding out how things stand, and daemonLook how often it
// is looked at until then.
const (
	daemonBegins = 15 * time.Second
	daemonLook   = 250 * time.Millisecond
)

// blindFor is how long a kind of event cannot have been told about before nth counts as blind to it: shorter outages are
// daily life.
const blindFor = 30 * time.Second

// blindTo names the kinds of the metadata service's that a daemon could not tell about, as it shows.
func blindTo(s record.Status) []record.DocumentStatus {
	return slices.DeleteFunc(slices.Clone(s.Documents), func(d record.DocumentStatus) bool {
		return !slices.Contains(event.PolledKinds(), d.Kind) || d.Trouble == "" || s.Updated.Sub(d.Since) <= blindFor
	})
}

// daemon checks whether nth runs here, and could act. It is a process of its own, whose unit shows it less of the machine
// than whoever checks can see: what is found here need not be there. ours is the identity that this check has found.
func (c *check) daemon(ctx context.Context, cfg config.Config, ours kubelet.Identity) {
	status, why := statusfile.Running("nth", cfg.RuntimeDirectory, time.Now())
	for why == "" && begins(status) && len(daemonFaults(status, ours)) > 0 && drain.Await(ctx, nil, daemonLook) {
		status, why = statusfile.Running("nth", cfg.RuntimeDirectory, time.Now())
	}
	if why != "" {
		c.Fail("daemon", "%s: nobody would drain this node; \"systemctl status nth\" tells more", why)
		return
	}
	faults := daemonFaults(status, ours)
	for _, fault := range faults {
		c.Fail("daemon", "%s", fault)
	}
	if len(faults) == 0 {
		c.OK("daemon", "process %d watches for node %s", status.PID, status.Node)
	}
	if status.DryRun && !cfg.DryRun {
		c.Warn("daemon", "it runs as a dry run: it says what it would do, and does none of it")
	}
}

// begins tells whether a daemon has started so lately that it may not know yet how things stand.
func begins(s record.Status) bool { return time.Since(s.Started) < daemonBegins }

// daemonFaults say what keeps a daemon that runs from draining this node.
func daemonFaults(s record.Status, ours kubelet.Identity) []string {
	var faults []string
	switch waits := s.Node == "" || s.Identity.Trouble != ""; {
	case waits && ours.Node != "":
		faults = append(faults, fmt.Sprintf("it has no credential: %s. This check has found one in %s: nth.service does not see "+
			"all that a shell does, such as files below /tmp, /home and /root (PrivateTmp=, ProtectHome=)", s.Identity.Trouble, ours.Source))
	case waits:
		faults = append(faults, "it has no credential: "+s.Identity.Trouble)
	case ours.Node != "" && s.Node != ours.Node:
		faults = append(faults, fmt.Sprintf("it acts for node %s, and the credential in %s is of node %s: systemctl restart nth", s.Node, ours.Source, ours.Node))
	}
	for _, d := range blindTo(s) {
		faults = append(faults, fmt.Sprintf("it has not been able to tell about %s since %s: %s", d.Kind, d.Since.UTC().Format("15:04:05 UTC"), d.Trouble))
	}
	return faults
}
