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
)

const (
	// maxTextSize bounds a message, in bytes.
	maxTextSize = 128 << 10
	// tryTimeout bounds the rendering of all samples. A template whose loops take longer is refused.
	tryTimeout = 5 * time.Second
)

// defaultTemplate is understood by Slack, Mattermost, Rocket.Chat and compatible services.
const defaultTemplate = `{"text": "{{ escapeSlack .Text }}"}`

// withheld are the functions of sprig that templates do not have. The first three read the environment or ask the DNS. The others turn a
// number into any amount of memory.
var withheld = []string{"env", "expandenv", "getHostByName", "indent", "nindent", "repeat", "seq", "until", "untilStep"}

// slackEscapes keep a text from being a mention or a link in Slack's markup: both begin with "<". teamsEscapes keep it from being a link in
// the Markdown of Teams' cards, which has no escapes in a table of facts.
var (
	slackEscapes = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;")
	teamsEscapes = strings.NewReplacer("[", "(", "]", ")")
)

// functions returns the functions of templates.
func functions() map[string]any {
	all := sprig.TxtFuncMap()
	for _, name := range withheld {
		delete(all, name)
	}
	all["escapeSlack"], all["escapeTeams"] = slackEscapes.Replace, teamsEscapes.Replace
	return all
}

// Template renders Fields as messages. Its engine is a copy of the standard library's that calls no methods. With those, the linker would keep
// every exported method of every type, and the program would be two thirds larger. So templates format times with functions.
type Template struct {
	parsed *template.Template
	json   bool // a message must be JSON
}

// NewTemplate compiles a template, or nth's own if the text is empty, and renders all Samples with it. Its messages must be JSON if the content
// type says so. Errors begin with the name of the template, and with the line where they concern one.
func NewTemplate(name, text, contentType string) (*Template, error) {
	t, err := compile(name, cmp.Or(text, defaultTemplate), contentType)
	if err != nil {
		return nil, err
	}
	tried := make(chan error, 1)
	go func() { tried <- t.try() }() // Only an endless loop without output is left behind.
	select {
	case err = <-tried:
	case <-time.After(tryTimeout):
		err = fmt.Errorf("%s: it takes more than %s", name, tryTimeout)
	}
	return t, err
}

// OwnTemplate is the template of nth, which always compiles and renders.
var OwnTemplate, _ = compile("nth's own template", defaultTemplate, "")

// compile compiles a template.
func compile(name, text, contentType string) (*Template, error) {
	if len(text) > maxTemplateSize {
		return nil, fmt.Errorf("%s: it is longer than %d bytes", name, maxTemplateSize)
	}
	parsed, err := template.New(name).Funcs(functions()).Parse(text)
	if err != nil {
		return nil, templateError(err)
	}
	media, _, err := mime.ParseMediaType(contentType)
	return &Template{parsed, err == nil && (media == "application/json" || strings.HasSuffix(media, "+json"))}, nil
}

// try renders all samples.
func (t *Template) try() error {
	silent := true
	for _, sample := range Samples() {
		text, err := t.Render(sample)
		if err != nil {
			return err
		}
		silent = silent && text == ""
	}
	if silent {
		return fmt.Errorf("%s: it gives nothing, for no notice", t.parsed.Name())
	}
	return nil
}

// Render renders one message. It returns "" if the template gives nothing but white space: then there is nothing to post.
func (t *Template) Render(f Fields) (string, error) {
	var text limitedText
	if err := t.parsed.Execute(&text, f); err != nil {
		return "", templateError(err)
	}
	if strings.TrimSpace(text.String()) == "" {
		return "", nil
	}
	var whole json.RawMessage
	if err := json.Unmarshal([]byte(text.String()), &whole); t.json && err != nil {
		return "", fmt.Errorf("%s: it gives no JSON, which is what the Content-Type says that it is, for a notice that is %q: %w", t.parsed.Name(), f.Outcome, err)
	}
	return text.String(), nil
}

// ReadTemplate reads a template's file. An empty file is an error. The error names the file.
func ReadTemplate(path string) (string, error) {
	text, err := readFile(path, maxTemplateSize)
	if err == nil && text == "" {
		err = fmt.Errorf("%s is empty", path)
	}
	return text, err
}

// limitedText is a text of at most maxTextSize bytes. A longer one is an error, which ends the template.
type limitedText struct{ strings.Builder }

// Write implements io.Writer.
func (t *limitedText) Write(p []byte) (int, error) {
	if t.Len()+len(p) > maxTextSize {
		return 0, fmt.Errorf("it gives more than %d bytes", maxTextSize)
	}
	return t.Builder.Write(p)
}

// templateError returns an error of the engine, which names the template and the line, without the engine's prefix. Where a template calls a
// method of a time, the error names the function to use instead.
func templateError(err error) error {
	text := strings.TrimPrefix(err.Error(), "template: ")
	if strings.HasSuffix(text, " in type time.Time") {
		text += ", whose methods are unknown here; try {{ date \"15:04\" .StartTime }}"
	}
	return errors.New(text)
}
