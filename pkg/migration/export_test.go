package migration

// Names lists the environment variables that have a rule.
func Names() []string {
	var names []string
	for _, r := range rules {
		names = append(names, r.env)
	}
	return names
}
