package findings

import (
	"context"
	"errors"
	"time"

	"github.com/nth-project/nth/cmd/internal/posting"
	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/notify"
)

// Webhook checks what can be checked of the webhook without posting, and posts a test if that is asked for: of the node
// that node names. The settings have been judged.
func (l *List) Webhook(ctx context.Context, cfg config.Webhook, post bool, node func(context.Context) string) {
	to, _ := posting.Destination(cfg, l.program)
	if posting.Judge(nil, &cfg, l.program) != nil && !post {
		return // It has been told.
	}
	switch {
	case to == nil && post:
		l.Fail("webhook", "the settings name nobody to post a test to")
	case to == nil:
		l.OK("webhook", "the settings name none; nothing is posted")
	case !post:
		l.OK("webhook", "the template gives a message for every kind of notice; \"%s check --webhook\" posts a test", l.program)
	default:
		l.post(ctx, cfg, node(ctx))
	}
}

// post posts a test.
func (l *List) post(ctx context.Context, cfg config.Webhook, node string) {
	settings, err := posting.Settings(cfg, l.program)
	if err == nil {
		err = postTest(ctx, settings, node)
	}
	if err != nil {
		l.Fail("webhook", "it did not take the test: %s", err)
		return
	}
	l.OK("webhook", "it has taken the test")
}

func postTest(ctx context.Context, settings *notify.WebhookSettings, node string) error {
	f := notify.TestFields(node, time.Now())
	text, err := settings.Template.Render(f)
	if err != nil {
		return err
	}
	if text == "" {
		return errors.New("the template gives nothing for it")
	}
	return settings.Post(ctx, f.NoticeID, text)
}
