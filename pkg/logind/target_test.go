package logind_test

import (
	"context"
	"strings"
	"testing"

	"github.com/godbus/dbus/v5"
)

const (
	managerPath = dbus.ObjectPath("/org/freedesktop/systemd1")
	managerFace = "org.freedesktop.systemd1.Manager"
	jobPath     = dbus.ObjectPath("/org/freedesktop/systemd1/job/7")
	ourTarget   = "nth-before-drain.target"
)

// A starter is on the bus what systemd is, as far as jobs go.
type starter struct {
	conn    *dbus.Conn
	asked   chan string
	refusal *dbus.Error
	hung    chan struct{} // nobody is told of jobs before it is closed; nil if it answers at once
}

// starts brings a systemd onto the bus that knows these units, by their escaped names.
func (r *rig) starts(t *testing.T, refusal *dbus.Error, units map[string]manager) *starter {
	t.Helper()
	return r.serves(t, &starter{refusal: refusal}, units)
}

// hangs brings one onto the bus that answers nothing before hung is closed.
func (r *rig) hangs(t *testing.T, hung chan struct{}) *starter {
	t.Helper()
	return r.serves(t, &starter{hung: hung}, nil)
}

func (r *rig) serves(t *testing.T, s *starter, units map[string]manager) *starter {
	t.Helper()
	s.conn, s.asked = connect(t, r.bus), make(chan string, 10)
	for path, m := range units {
		if err := s.conn.ExportMethodTable(map[string]any{"Get": m.get}, managerPath+"/unit/"+dbus.ObjectPath(path), "org.freedesktop.DBus.Properties"); err != nil {
			t.Fatal(err)
		}
	}
	methods := map[string]any{"StartUnit": s.start, "Subscribe": s.subscribe}
	if err := s.conn.ExportMethodTable(methods, managerPath, managerFace); err != nil {
		t.Fatal(err)
	}
	if reply, err := s.conn.RequestName("org.freedesktop.systemd1", dbus.NameFlagDoNotQueue); err != nil || reply != dbus.RequestNameReplyPrimaryOwner {
		t.Fatalf("becoming systemd: %v, %v", reply, err)
	}
	return s
}

func (s *starter) subscribe() *dbus.Error {
	if s.hung != nil {
		s.asked <- "subscribe"
		<-s.hung
	}
	return nil
}

func (s *starter) start(unit, mode string) (dbus.ObjectPath, *dbus.Error) {
	s.asked <- unit + " " + mode
	return jobPath, s.refusal
}

// ends tells everybody what has come of the job.
func (s *starter) ends(t *testing.T, result string) {
	t.Helper()
	if err := s.conn.Emit(managerPath, managerFace+".JobRemoved", uint32(7), jobPath, ourTarget, result); err != nil {
		t.Fatal(err)
	}
}

// unit is one in a state.
func unit(state string) manager {
	return manager{map[string]dbus.Variant{"ActiveState": dbus.MakeVariant(state)}}
}

func TestATargetIsStartedWhenAllThatItWantsIs(t *testing.T) {
	wanted := map[string]manager{
		"nth_2dbefore_2ddrain_2etarget": {map[string]dbus.Variant{"Wants": dbus.MakeVariant([]string{"tell.service", "save.service", "done.service"})}},
		"save_2eservice":                unit("failed"), "tell_2eservice": unit("failed"), "done_2eservice": unit("inactive"),
	}
	nothing := map[string]manager{"nth_2dbefore_2ddrain_2etarget": {map[string]dbus.Variant{"Wants": dbus.MakeVariant([]string{})}}}
	for name, c := range map[string]struct {
		units   map[string]manager
		refusal *dbus.Error
		result  string // of the job; "" if it does not end
		want    string // part of the error; "" if there is none
	}{
		"it wants nothing":       {nothing, nil, "done", ""},
		"units have failed":      {wanted, nil, "done", ourTarget + ": failed: save.service, tell.service"},
		"it is not there":        {nothing, dbus.NewError("org.freedesktop.systemd1.NoSuchUnit", []any{"Unit not found."}), "", "starting " + ourTarget + ": Unit not found."},
		"a shutdown is going on": {nothing, dbus.NewError("org.freedesktop.systemd1.TransactionIsDestructive", []any{"Transaction is destructive."}), "", "destructive"},
		"what it requires fails": {nothing, nil, "dependency", "systemd says dependency"},
		"a unit takes for ever":  {nothing, nil, "", "context canceled"},
		"somebody calls it off":  {nothing, nil, "canceled", "systemd says canceled"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.bus.start(t)
			manager := r.starts(t, c.refusal, c.units)
			host := r.rooted(t)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			done := make(chan error, 1)
			go func() { done <- host.StartTarget(ctx, ourTarget) }()
			if asked := next(t, manager.asked); asked != ourTarget+" replace" {
				t.Errorf("asked for %s", asked)
			}
			switch {
			case c.result != "":
				manager.ends(t, c.result)
			case c.refusal == nil:
				cancel()
			}
			err := next(t, done)
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("it ended with %v, want %q", err, c.want)
			}
		})
	}
}

func TestAHostWithoutASystemdStartsNoTarget(t *testing.T) {
	r := newRig(t)
	if err := r.rooted(t).StartTarget(t.Context(), ourTarget); err == nil || !strings.Contains(err.Error(), "starting "+ourTarget) {
		t.Errorf("it ended with %v", err)
	}
}

// A systemd that is frozen answers nothing, and nth is to go on all the same.
func TestASystemdThatDoesNotAnswerIsNotWaitedForBeyondTheTime(t *testing.T) {
	r := newRig(t)
	r.bus.start(t)
	hung := make(chan struct{})
	defer close(hung)
	manager := r.hangs(t, hung)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	host := r.rooted(t)
	go func() { done <- host.StartTarget(ctx, ourTarget) }()
	if asked := next(t, manager.asked); asked != "subscribe" {
		t.Fatalf("asked for %s", asked)
	}
	cancel()
	if err := next(t, done); err == nil || !strings.Contains(err.Error(), "starting "+ourTarget) {
		t.Errorf("it ended with %v", err)
	}
}
