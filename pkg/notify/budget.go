package notify

import (
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"strings"
	"time"

	template "github.com/DataDog/datadog-agent/pkg/template/text"
	"github.com/Masterminds/sprig/v3"
)

const (
	// maxTextSize bounds a message, in bytes, and maxValueSize the result of a function.
	maxTextSize  = 128 << 10
	maxValueSize = 2 * maxTextSize
	// maxWork bounds the work to render one message: the bytes that functions take and return, and stepWork for each step.
	maxWork  = 8 << 20
	stepWork = 256
	// maxRenderTime bounds what is not counted as work, such as long comparisons.
	maxRenderTime = 5 * time.Second
	// maxShort bounds, in bytes, the arguments of a function whose time grows with the product of their lengths.
	maxShort = 4 << 10
)

var (
	errTooLong = fmt.Errorf("it gives more than %d bytes", maxTextSize)
	errTooMuch = fmt.Errorf("it does more than a message may take: loops, or texts that grow")
)

// budget is what one message may use. Whatever a template does ends soon, in little memory. It has only functions whose result is about as
// long as their arguments. Each result is bounded, and so is the sum of all results and steps.
type budget struct {
	work  int             // that is left
	until time.Time       // when rendering must have ended
	text  strings.Builder // the message
}

// spend takes work from the budget. It returns errTooMuch if too little is left, or the time is over.
func (b *budget) spend(work int) error {
	if b.work -= work; b.work < 0 || time.Now().After(b.until) {
		return errTooMuch
	}
	return nil
}

// Write implements io.Writer for the message. Because of countSteps, the template calls it at each step, also with an empty text.
func (b *budget) Write(p []byte) (int, error) {
	if err := b.spend(len(p) + stepWork); err != nil {
		return 0, err
	}
	if b.text.Len()+len(p) > maxTextSize {
		return 0, errTooLong
	}
	return b.text.Write(p)
}

// sprigs are all functions of sprig.
var sprigs = sprig.TxtFuncMap()

// linear are functions of sprig for templates; docs/notices.md lists all. Their results are at most some times as long as their arguments.
// They change no argument, and read neither the environment nor the network. Those about time read the clock.
var linear = []string{
	"abbrev", "abbrevboth", "b64dec", "b64enc", "camelcase", "cat", "contains", "hasPrefix", "hasSuffix", "initials", "kebabcase", "lower",
	"nospace", "plural", "quote", "sha1sum", "sha256sum", "snakecase", "split", "splitList", "splitn", "squote", "substr", "swapcase", "title",
	"toString", "toStrings", "trim", "trimAll", "trimPrefix", "trimSuffix", "trunc", "untitle", "upper",
	"add", "add1", "atoi", "ceil", "div", "float64", "floor", "int", "int64", "max", "min", "mod", "mul", "round", "sub",
	"all", "any", "coalesce", "default", "empty", "ternary",
	"append", "compact", "concat", "dict", "dig", "first", "get", "has", "hasKey", "initial", "keys", "last", "list", "omit", "pick", "prepend",
	"rest", "reverse", "slice", "sortAlpha", "values",
	"mustToJson", "mustToRawJson", "toJson", "toRawJson",
	"ago", "date", "dateInZone", "date_in_zone", "dateModify", "date_modify", "duration", "durationRound", "htmlDate", "htmlDateInZone", "now",
	"toDate", "unixEpoch",
}

// short are functions of sprig that take at most maxShort bytes.
var short = []string{"regexFind", "regexMatch", "regexReplaceAll", "regexReplaceAllLiteral"}

// slackEscapes keep a text from being a mention or a link in Slack's markup: both begin with "<". teamsEscapes keep it from being a link in
// the Markdown of Teams' cards, which has no escapes in a table of facts.
var (
	slackEscapes = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;")
	teamsEscapes = strings.NewReplacer("[", "(", "]", ")")
)

// functions returns the functions of templates, which spend the budget.
func (b *budget) functions() map[string]any {
	functions := map[string]any{
		"escapeSlack": slackEscapes.Replace, "escapeTeams": teamsEscapes.Replace,
		"join": join, "replace": replace, "printf": printf,
		// These replace the engine's own, which spend nothing.
		"html": template.HTMLEscaper, "js": template.JSEscaper, "print": fmt.Sprint, "println": fmt.Sprintln, "urlquery": template.URLQueryEscaper,
	}
	for _, name := range linear {
		functions[name] = sprigs[name]
	}
	for name, f := range maps.Clone(functions) {
		functions[name] = b.bounded(f, maxWork)
	}
	for _, name := range short {
		functions[name] = b.bounded(sprigs[name], maxShort)
	}
	return functions
}

// bounded returns a function with the parameters of f and the results (result, error). It calls f and spends the budget for the arguments and
// the result. It fails if too little of the budget is left, if the arguments have more than maxArguments bytes, or the result more than
// maxValueSize.
func (b *budget) bounded(f any, maxArguments int) any {
	call := reflect.ValueOf(f)
	kind, fault := call.Type(), reflect.TypeFor[error]()
	var parameters []reflect.Type
	for i := range kind.NumIn() {
		parameters = append(parameters, kind.In(i))
	}
	bounded := func(args []reflect.Value) []reflect.Value {
		failed := func(err error) []reflect.Value {
			return []reflect.Value{reflect.Zero(kind.Out(0)), reflect.ValueOf(&err).Elem()}
		}
		size := 0
		for _, arg := range args {
			size += sizeOf(arg, maxWork)
		}
		if err := b.spend(size); err != nil {
			return failed(err)
		}
		if size > maxArguments {
			return failed(fmt.Errorf("it takes no more than %d bytes", maxArguments))
		}
		var results []reflect.Value
		if kind.IsVariadic() { // The last argument is a slice with all that are left.
			results = call.CallSlice(args)
		} else {
			results = call.Call(args)
		}
		if size = sizeOf(results[0], maxValueSize); size > maxValueSize {
			return failed(errTooLong)
		}
		if err := b.spend(size); err != nil {
			return failed(err)
		}
		if len(results) == 1 { // f returns no error.
			results = append(results, reflect.Zero(fault))
		}
		return results
	}
	return reflect.MakeFunc(reflect.FuncOf(parameters, []reflect.Type{kind.Out(0), fault}, kind.IsVariadic()), bounded).Interface()
}

// sizeOf returns about how many bytes a value takes when it is written. Once it has counted enough, it stops soon.
func sizeOf(v reflect.Value, enough int) int {
	size := 16 // a number, or the header of any other value
	switch v.Kind() {
	case reflect.String:
		size += v.Len()
	case reflect.Interface:
		size += sizeOf(v.Elem(), enough)
	case reflect.Slice, reflect.Array:
		for i := 0; i < v.Len() && size <= enough; i++ {
			size += sizeOf(v.Index(i), enough-size)
		}
	case reflect.Map:
		for entry := v.MapRange(); size <= enough && entry.Next(); {
			size += sizeOf(entry.Key(), enough-size) + sizeOf(entry.Value(), enough-size)
		}
	case reflect.Struct:
		for _, field := range v.Fields() {
			size += sizeOf(field, enough-size)
		}
	}
	return size
}

// join is sprig's, but refuses to make a result that is too long. So do replace and printf.
func join(separator string, list any) (string, error) {
	if v := reflect.ValueOf(list); v.Kind() == reflect.Slice && v.Len()*len(separator) > maxValueSize {
		return "", errTooLong
	}
	return sprigs["join"].(func(string, any) string)(separator, list), nil
}

// replace is sprig's: the text is last, for pipelines.
func replace(from, to, text string) (string, error) {
	if strings.Count(text, from)*len(to) > maxValueSize {
		return "", errTooLong
	}
	return strings.ReplaceAll(text, from, to), nil
}

// longVerbs match the verbs of printf that may write much for little: "[n]" repeats an argument, and "*" and a number of four digits are
// widths of more than 999.
var longVerbs = regexp.MustCompile(`%[-+# .0-9]*([\[*]|[0-9]{4})`)

// printf is Go's fmt.Sprintf, without the verbs of longVerbs.
func printf(format string, args ...any) (string, error) {
	if longVerbs.MatchString(format) {
		return "", fmt.Errorf("%q: printf takes widths up to 999, and no [n] and no *", format)
	}
	return fmt.Sprintf(format, args...), nil
}
