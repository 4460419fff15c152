package config

// Diff names the settings in which two configurations differ, as in "drain.margin", in the order of the documentation.
func Diff(a, b Config) []string { return diff(a.tables(), b.tables()) }

// DiffQueue is Diff for nth-queue.
func DiffQueue(a, b Queue) []string { return diff(a.tables(), b.tables()) }

func diff(a, b []table) []string {
	of := map[string]string{}
	for _, t := range a {
		for _, s := range t.settings {
			of[fullKey(t, s)] = s.value.show()
		}
	}
	var names []string
	for _, t := range b {
		for _, s := range t.settings {
			if name := fullKey(t, s); s.value.show() != of[name] {
				names = append(names, name)
			}
		}
	}
	return names
}
