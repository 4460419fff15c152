package checks

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/nth-project/nth/cmd/internal/secrets"
	"github.com/nth-project/nth/cmd/internal/webhooks"
	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/notify"
)

// Webhook checks what can be checked of the webhook without posting, and posts a test if that is asked for: of the node
// that node names. The settings have been judged with the credentials that given finds, and this was found.
func (l *List) Webhook(
	ctx context.Context, cfg config.Webhook, given secrets.Given, found []webhooks.Finding, post bool, node func(context.Context) string,
) {
	l.Sources("webhook", found)
	wrong := slices.ContainsFunc(found, func(f webhooks.Finding) bool { return f.Fault != nil })
	switch known := webhooks.Destination(cfg, l.program, given) != nil; {
	case !known && post:
		l.Fail("webhook", "no webhook URL can be read from here, so no test was sent")
	case post:
		l.post(ctx, cfg, given, node(ctx))
	case wrong: // It has been told.
	case !known && slices.ContainsFunc(found, func(f webhooks.Finding) bool { return f.Passed != "" }):
		l.OK("webhook", "the template renders every kind of notice")
	case !known:
		l.OK("webhook", "no webhook configured")
	default:
		l.OK("webhook", "the template renders every kind of notice; \"%s check --webhook\" posts a test", l.program)
	}
}

// post posts a test.
func (l *List) post(ctx context.Context, cfg config.Webhook, given secrets.Given, node string) {
	settings, err := webhooks.Settings(cfg, l.program, given)
	if err == nil {
		err = postTest(ctx, settings, node)
	}
	if err != nil {
		l.Fail("webhook", "test message rejected: %s", err)
		return
	}
	l.OK("webhook", "test message delivered")
}

func postTest(ctx context.Context, settings *notify.WebhookSettings, node string) error {
	f := notify.TestFields(node, time.Now())
	text, err := settings.Template.Render(f)
	if err != nil {
		return err
	}
	if text == "" {
		return errors.New("the template renders nothing for it")
	}
	return settings.Post(ctx, f.NoticeID, text)
}
