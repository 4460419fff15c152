package drain

import "slices"

// conclude fills in the result from the pods that are left.
func (d *drainer) conclude() {
	d.result.Skipped = len(d.spared)
	for _, t := range d.targets {
		d.count(t)
		name := podName(t.pod)
		d.result.Left = append(d.result.Left, name)
		if t.held != "" {
			if d.result.HeldBy == nil {
				d.result.HeldBy = map[string]string{}
			}
			d.result.HeldBy[name] = t.held
		}
	}
	slices.Sort(d.result.Left)
}
