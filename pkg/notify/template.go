package notify

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"strings"
	"time"

	template "github.com/DataDog/datadog-agent/pkg/template/text"
	"github.com/Masterminds/sprig/v3"

	"github.com/nth-project/nth/pkg/text"
)

const (
	// maxTextSize bounds a message, in bytes.
	maxTextSize = 128 << 10
	// tryTimeout is how long the rendering of all samples may take. NewTemplate refuses a template whose loops take longer.
	tryTimeout = 5 * time.Second
)

// defaultTemplate makes messages that Slack, Mattermost, Rocket.Chat and compatible services understand.
const defaultTemplate = `{"text": "{{ escapeSlack .Text }}"}`

// withheld are the functions of sprig that templates do not have. The first three read the environment or ask the DNS. The others turn a
// number into any amount of memory.
var withheld = []string{"env", "expandenv", "getHostByName", "indent", "nindent", "repeat", "seq", "until", "untilStep"}

// slackEscapes keep a text from being a mention or a link in Slack's markup: both begin with "<". teamsEscapes keep a text from being a link in
// Teams' cards. Their Markdown has no escapes in a table of facts, so other characters replace the brackets.
var (
	slackEscapes = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;")
	teamsEscapes = strings.NewReplacer("[", "(", "]", ")")
)

// functions returns the functions that templates may call: those of sprig but for the withheld ones, and two of nth.
func functions() map[string]any {
	all := sprig.TxtFuncMap()
	for _, name := range withheld {
		delete(all, name)
	}
	all["escapeSlack"], all["escapeTeams"] = slackEscapes.Replace, teamsEscapes.Replace
	return all
}

// Template renders Fields as messages.
//
// Its engine is a copy of the standard library's text/template that calls no methods of values. An engine that calls methods makes the linker
// keep every exported method of every type: the program would be two thirds larger. So templates format times with functions.
type Template struct {
	parsed *template.Template
	json   bool // the content type says that messages are JSON
}

// NewTemplate compiles a template, and renders all Samples with it. If text is empty, that is nth's own template. If contentType is a type of
// JSON, the messages must be JSON. Errors begin with name and, if they concern a line, the line's number.
func NewTemplate(name, text, contentType string) (*Template, error) {
	parsed, err := template.New(name).Funcs(functions()).Parse(cmp.Or(text, defaultTemplate))
	if err != nil {
		return nil, templateError(err)
	}
	media, _, err := mime.ParseMediaType(contentType)
	isJSON := err == nil && (media == "application/json" || strings.HasSuffix(media, "+json")) // err: the type is unknown, or "".
	t := &Template{parsed, isJSON}
	tried := make(chan error, 1)
	go func() { tried <- t.try() }() // A template that loops for ever without output keeps this goroutine. Any other ends it.
	select {
	case err = <-tried:
	case <-time.After(tryTimeout):
		err = fmt.Errorf("%s: rendering the webhook's template takes longer than %s", name, tryTimeout)
	}
	return t, err
}

// OwnTemplate returns nth's own template, which always compiles and renders.
func OwnTemplate() *Template {
	own, _ := NewTemplate("nth's own template", "", DefaultContentType)
	return own
}

// try renders all samples. It returns an error if one cannot be rendered, or if the template gives nothing for any of them.
func (t *Template) try() error {
	silent := true
	for _, sample := range Samples() {
		text, err := t.Render(sample)
		if err != nil {
			return err
		}
		silent = silent && text == "" // A template may give nothing for some notices, but not for all.
	}
	if silent {
		return fmt.Errorf("%s: the webhook's template renders no text for any notice", t.parsed.Name())
	}
	return nil
}

// Render renders one message. It returns "" if the template gives only white space: then the caller posts nothing. Text that must be JSON, and
// is not, is an error.
func (t *Template) Render(f Fields) (string, error) {
	var text limitedText
	if err := t.parsed.Execute(&text, f); err != nil {
		return "", templateError(err)
	}
	if strings.TrimSpace(text.String()) == "" {
		return "", nil
	}
	var parsed json.RawMessage
	if err := json.Unmarshal([]byte(text.String()), &parsed); t.json && err != nil {
		return "", fmt.Errorf("%s: the webhook's template does not render valid JSON for the outcome %q, but the Content-Type is JSON: %w", t.parsed.Name(), f.Outcome, err)
	}
	return text.String(), nil
}

// ReadTemplate reads a template's file. An empty file is an error: NewTemplate would take nth's own template. The error names the file.
func ReadTemplate(path string) (string, error) {
	content, err := text.ReadFile(path, maxFileSize)
	if err == nil && len(content) == 0 {
		err = fmt.Errorf("%s is empty", path)
	}
	return string(content), err
}

// limitedText is the text that a template writes. A write that makes it longer than maxTextSize fails, which ends the template.
type limitedText struct{ strings.Builder }

// Write implements io.Writer.
func (t *limitedText) Write(p []byte) (int, error) {
	if t.Len()+len(p) > maxTextSize {
		return 0, fmt.Errorf("the webhook's template renders more than %d bytes for one notice", maxTextSize)
	}
	return t.Builder.Write(p)
}

// templateError takes the engine's prefix off an error of the engine, which names the template and the line. If a template calls a method of a
// time, templateError adds which function to use instead.
func templateError(err error) error {
	text := strings.TrimPrefix(err.Error(), "template: ")
	if strings.HasSuffix(text, " in type time.Time") {
		text += "; a template cannot call its methods: use {{ date \"15:04\" .StartTime }}"
	}
	return errors.New(text)
}
