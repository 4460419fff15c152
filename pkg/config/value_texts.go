package config

import (
	"maps"
	"slices"
	"strings"
)

// texts is a table of strings under names that people choose. A file sets only the names it holds; the empty table is
// nil.
type texts struct {
	at   *map[string]string
	good func(name, text string) bool
	want string // what the table is, and each name and text in it
}

func (v texts) allowed() string { return v.want }

func (v texts) show() string {
	if len(*v.at) == 0 {
		return "{}"
	}
	var pairs []string
	for _, name := range slices.Sorted(maps.Keys(*v.at)) {
		pairs = append(pairs, quote(name)+" = "+quote((*v.at)[name]))
	}
	return "{ " + strings.Join(pairs, ", ") + " }"
}

func (v texts) set(got any, fault func(string, any, string)) {
	table, ok := got.(map[string]any)
	if !ok {
		fault("", got, v.allowed())
		return
	}
	all := maps.Clone(*v.at)
	for _, name := range sorted(table) {
		text, ok := table[name].(string)
		if !ok || !v.good(name, text) {
			fault(name, table[name], v.allowed())
			continue
		}
		if all == nil {
			all = map[string]string{}
		}
		all[name] = text
	}
	*v.at = all
}
