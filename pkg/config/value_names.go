package config

import "strings"

// names is a list of strings that good accepts; the empty list is nil.
type names struct {
	at   *[]string
	good func(string) bool
	want string
}

func (v names) allowed() string { return v.want }
func (v names) show() string    { return "[" + quoteAll(*v.at) + "]" }

func (v names) set(got any, fault func(string, any, string)) {
	list, ok := got.([]any)
	if !ok {
		fault("", got, v.want)
		return
	}
	var found []string
	for _, item := range list {
		name, ok := item.(string)
		if !ok || !v.good(name) {
			fault("", got, v.want)
			return
		}
		found = append(found, name)
	}
	*v.at = found
}

// hookName tells whether a lifecycle hook can have that name.
func hookName(s string) bool {
	return s != "" && len(s) <= 255 && strings.Trim(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_/") == ""
}
