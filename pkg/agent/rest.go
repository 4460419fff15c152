package agent

import "github.com/nth-project/nth/pkg/policy"

// rested tells of each announced event when it may call for a step again. What is not in the record is nobody's business.
func (a *Agent) rested(sit policy.Situation) {
	if a.flight != nil || a.cfg.Rested == nil {
		return
	}
	for _, events := range a.known {
		for _, ev := range events {
			a.cfg.Rested(ev, a.rules().Again(sit, ev))
		}
	}
}
