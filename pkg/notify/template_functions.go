package notify

import (
	"fmt"
	"reflect"

	"github.com/Masterminds/sprig/v3"
)

// unfit are functions of sprig that make something else each time they are called, which no notice may depend on, or a key, which takes them
// seconds.
var unfit = []string{
	"bcrypt", "derivePassword", "encryptAES", "genCA", "genCAWithKey", "genPrivateKey", "genSelfSignedCert", "genSelfSignedCertWithKey",
	"genSignedCert", "genSignedCertWithKey", "htpasswd", "randInt", "shuffle",
}

// multiplying are those that make as much of something as a number says, and most is the largest number that they take: one digit too many
// must not cost the memory of the node.
var multiplying = []string{"indent", "nindent", "repeat", "seq", "until", "untilStep"}

const most = 10_000

// functions are those of sprig that read neither the environment nor the network and make no random values, and those about
// time, which sprig counts among them for the clock that they read.
func functions() map[string]any {
	all, some := sprig.TxtFuncMap(), sprig.HermeticTxtFuncMap()
	for _, name := range []string{
		"now", "date", "dateInZone", "date_in_zone", "dateModify", "date_modify", "htmlDate", "htmlDateInZone",
	} {
		some[name] = all[name]
	}
	for _, name := range unfit {
		delete(some, name)
	}
	for _, name := range multiplying {
		some[name] = modest(name, reflect.ValueOf(some[name]))
	}
	some[methodFunction] = callMethod
	return some
}

// modest is a function of numbers and texts that is not called where it would make more than a message has place for.
func modest(name string, f reflect.Value) func(args ...any) (any, error) {
	takes := f.Type()
	wanted := func(i int) reflect.Type {
		if last := takes.NumIn() - 1; i >= last && takes.IsVariadic() {
			return takes.In(last).Elem()
		}
		return takes.In(i)
	}
	return func(args ...any) (any, error) {
		if !takes.IsVariadic() && len(args) != takes.NumIn() {
			return nil, fmt.Errorf("%s takes %d arguments, not %d", name, takes.NumIn(), len(args))
		}
		values, times, length := make([]reflect.Value, len(args)), int64(1), int64(1)
		for i, arg := range args {
			value, want := reflect.ValueOf(arg), wanted(i)
			switch number := value.CanInt() && want.Kind() == reflect.Int; {
			case number && (value.Int() < -most || value.Int() > most):
				return nil, fmt.Errorf("%s takes numbers up to %d, not %d", name, most, arg)
			case number:
				times = max(times, value.Int())
			case value.Kind() == reflect.String && want.Kind() == reflect.String:
				length = max(length, int64(value.Len()))
			default:
				return nil, fmt.Errorf("%s takes no %T there", name, arg)
			}
			values[i] = value.Convert(want)
		}
		if times*length > longestText {
			return nil, errTooLong
		}
		return f.Call(values)[0].Interface(), nil
	}
}
