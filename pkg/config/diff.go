package config

// Diff names the settings in which two configurations differ, as in "drain.margin", in the order of the documentation.
func Diff(a, b Config) []string {
	return append(diff(a.tables(), b.tables()), a.Webhook.rewritten(b.Webhook)...)
}

// DiffQueue is Diff for nth-queue.
func DiffQueue(a, b Queue) []string {
	return append(diff(a.tables(), b.tables()), a.Webhook.rewritten(b.Webhook)...)
}

// rewritten names the file of the template if it is the same and what is in it is not.
func (c *Webhook) rewritten(now Webhook) []string {
	if now.TemplateFile == "" || c.TemplateFile != now.TemplateFile || c.TemplateText == now.TemplateText {
		return nil
	}
	return []string{"webhook.template_file"}
}

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
