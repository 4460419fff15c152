package notify_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/notify"
	"github.com/nth-project/nth/pkg/record"
)

// post is what an endpoint was sent.
type post struct {
	at       time.Duration // since the test began
	id, text string
}

// hookRig is a webhook with an endpoint, on a clock that is the test's.
type hookRig struct {
	t     *testing.T
	dir   string
	began time.Time
	hook  *notify.Webhook
	stop  func()

	mu       sync.Mutex // for these, which the webhook's goroutine uses, too
	answer   func(ctx context.Context, text string) error
	posts    []post
	tellings []notify.Telling

	settings notify.WebhookSettings
	change   func(*notify.WebhookOptions)
}

// plainText is a template whose messages are easy to compare.
const plainText = `{{ .EventID }} {{ .Outcome }}`

func hooked(t *testing.T, test func(r *hookRig)) {
	t.Helper()
	hookedWith(t, func(*notify.WebhookOptions) {}, test)
}

// hookedWith does that with other options.
func hookedWith(t *testing.T, change func(*notify.WebhookOptions), test func(r *hookRig)) {
	t.Helper()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		template, err := notify.CompileTemplate("test", plainText, "text/plain")
		if err != nil {
			t.Fatal(err)
		}
		r := &hookRig{t: t, dir: dir, began: time.Now(), change: change}
		r.up()
		r.settings = notify.WebhookSettings{Template: template, Post: r.post, AtDetection: true, AtEnd: true, AtClose: true}
		r.start()
		test(r)
		r.stop()
	})
}

func (r *hookRig) post(ctx context.Context, id, text string) error {
	r.mu.Lock()
	r.posts = append(r.posts, post{time.Since(r.began), id, text})
	answer := r.answer
	r.mu.Unlock()
	return answer(ctx, text)
}

// answers makes the endpoint answer so from now on.
func (r *hookRig) answers(answer func(ctx context.Context, text string) error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answer = answer
}

// posted returns what was posted since it was called last.
func (r *hookRig) posted() []post {
	r.mu.Lock()
	defer r.mu.Unlock()
	posts := r.posts
	r.posts = nil
	return posts
}

// told returns all that became of notices.
func (r *hookRig) told() []notify.Telling {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.tellings)
}

// use changes the settings of the webhook that runs, and of those that are started later.
func (r *hookRig) use(change func(*notify.WebhookSettings)) {
	changed := r.settings
	change(&changed)
	r.settings = changed
	r.hook.Use(&changed)
}

// useTemplate makes the messages other ones.
func (r *hookRig) useTemplate(text string) {
	template, err := notify.CompileTemplate("test", text, "text/plain")
	if err != nil {
		r.t.Fatal(err)
	}
	r.use(func(s *notify.WebhookSettings) { s.Template = template })
}

// start begins a run of the webhook over the same state directory.
func (r *hookRig) start() {
	box, warnings := record.OpenOutbox(r.dir)
	if len(warnings) > 0 {
		r.t.Errorf("opening the outbox: %v", warnings)
	}
	opts := notify.WebhookOptions{
		Outbox:  box,
		Machine: func(context.Context, string) notify.Machine { return notify.Machine{ID: "i-1"} },
		Node: func(context.Context, string) (string, map[string]string) {
			return "ip-10-0-0-1", map[string]string{"team": "web"}
		},
		Told: func(t notify.Telling) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.tellings = append(r.tellings, t)
		},
	}
	r.change(&opts)
	r.hook = notify.NewWebhook(opts)
	r.use(func(*notify.WebhookSettings) {})
	ctx, cancel := context.WithCancel(r.t.Context())
	ended := make(chan struct{})
	hook := r.hook
	go func() {
		defer close(ended)
		hook.Run(ctx)
	}()
	r.stop = func() {
		cancel()
		<-ended
	}
}

// hear tells the webhook that something happened to the event, and lets it do what it does at once.
func (r *hookRig) hear(what record.What, id string, change ...func(*record.Happening)) {
	h := record.Happening{What: what, At: time.Now(), Node: "ip-10-0-0-1", Entry: r.entry(id, record.Seen)}
	for _, c := range change {
		c(&h)
	}
	r.hook.Hear(h)
	synctest.Wait()
}

func (r *hookRig) entry(id string, phase record.Phase) record.Entry {
	return record.Entry{
		Event: event.Event{ID: id, Kind: event.SpotInterruption, Code: "terminate", State: event.Pending, Deadline: r.began.Add(2 * time.Minute)},
		Phase: phase, FirstSeen: r.began, Changed: r.began,
	}
}

// drain is the step that a happening belongs to, with the phase that its entry is in.
func drain(phase record.Phase) func(*record.Happening) {
	return func(h *record.Happening) { h.Action, h.Entry.Phase = "drain", phase }
}

func endsAs(ending record.Ending) func(*record.Happening) {
	return func(h *record.Happening) { h.Entry.Phase, h.Entry.Ending = record.Closed, ending }
}

// pass lets time go by.
func (r *hookRig) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// want compares what was posted since it was called last, with the time of each where that is given.
func (r *hookRig) want(posts ...string) {
	r.t.Helper()
	var got []string
	for i, p := range r.posted() {
		text := p.text
		if i < len(posts) && strings.Contains(posts[i], "@") {
			text = fmt.Sprintf("%s @%s", p.text, p.at)
		}
		got = append(got, text)
	}
	if !slices.Equal(got, posts) {
		r.t.Errorf("posted were\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(posts, "\n\t"))
	}
}

// wantInAnyOrder compares what was posted likewise, but for the order of different events.
func (r *hookRig) wantInAnyOrder(posts ...string) {
	r.t.Helper()
	var got []string
	for _, p := range r.posted() {
		got = append(got, p.text)
	}
	byEvent := func(a, b string) int { return strings.Compare(strings.Fields(a)[0], strings.Fields(b)[0]) }
	slices.SortStableFunc(got, byEvent)
	slices.SortStableFunc(posts, byEvent)
	if !slices.Equal(got, posts) {
		r.t.Errorf("posted were, by event,\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(posts, "\n\t"))
	}
}

// down makes the endpoint refuse everything.
func (r *hookRig) down() {
	r.answers(func(context.Context, string) error { return errors.New("connection refused") })
}

func (r *hookRig) up() { r.answers(func(context.Context, string) error { return nil }) }
