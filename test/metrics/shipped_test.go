package metrics

import (
	"encoding/json"
	"net/url"
	"os"
	"regexp"
	"strings"
	"testing"
)

// judgeDashboard checks that each query of the program's dashboard is answered, with everything chosen, and that those
// which do not ask for the process are answered for either way in which the program is read.
func judgeDashboard(t *testing.T, p *prometheus) {
	t.Helper()
	text, err := os.ReadFile(shipped(t, "grafana/"+p.program+".json"))
	if err != nil {
		t.Fatal(err)
	}
	var dashboard any
	if err := json.Unmarshal(text, &dashboard); err != nil {
		t.Fatal(err)
	}
	queries := queriesIn(dashboard)
	if len(queries) < 25 {
		t.Errorf("found %d queries in the dashboard: it is read wrongly", len(queries))
	}
	for _, query := range queries {
		instances := []string{".*", ".*:9092", ".*:9100"}
		if strings.Contains(query, "process_") {
			instances = instances[:2]
		}
		for _, instance := range instances {
			expr := strings.NewReplacer("$instance", instance, "$__rate_interval", "2m").Replace(query)
			if n, err := p.query(expr); err != nil || n == 0 {
				t.Errorf("the dashboard asks for what has no data: %s (%v)", expr, err)
			}
		}
	}
}

// queriesIn returns the queries of all panels, of the annotations and of the variables.
func queriesIn(value any) []string {
	var found []string
	switch value := value.(type) {
	case map[string]any:
		for key, below := range value {
			text, _ := below.(string)
			switch labels, isLabels := strings.CutPrefix(text, "label_values("); {
			case key == "expr":
				found = append(found, text)
			case key == "query" && isLabels:
				metric, _, _ := strings.Cut(labels, ",")
				found = append(found, metric)
			default:
				found = append(found, queriesIn(below)...)
			}
		}
	case []any:
		for _, below := range value {
			found = append(found, queriesIn(below)...)
		}
	}
	return found
}

// others is how a rule leaves out what is not meant, which need not be there.
const others = " unless on (job, instance) nth_queue_up"

// selector is a metric with or without labels, as rules have it.
var selector = regexp.MustCompile(`(?:nth_|node_textfile_)[a-z_]+(?:\{[^}]*\})?|up\{[^}]*\}`)

// judgeRules checks that the server can evaluate each alert, and that the series are there which it looks at: most of
// them say something in trouble only.
func judgeRules(t *testing.T, p *prometheus) {
	t.Helper()
	var data struct {
		Groups []struct {
			Rules []struct{ Name, Query, Health, LastError string }
		}
	}
	if err := p.get("/api/v1/rules", url.Values{}, &data); err != nil {
		t.Fatal(err)
	}
	alerts := 0
	for _, group := range data.Groups {
		for _, rule := range group.Rules {
			alerts++
			if rule.Health != "ok" {
				t.Errorf("the alert %s is %s: %s", rule.Name, rule.Health, rule.LastError)
			}
			if strings.HasPrefix(rule.Query, "kube_") {
				continue // it is of kube-state-metrics, which is not here
			}
			series := selector.FindAllString(strings.ReplaceAll(rule.Query, others, ""), -1)
			if len(series) == 0 {
				t.Errorf("the alert %s looks at nothing that is known: %s", rule.Name, rule.Query)
			}
			for _, s := range series {
				if strings.HasPrefix(s, "nth_ena_") {
					continue // it is there on EC2 alone
				}
				if n, err := p.query(s); err != nil || n == 0 {
					t.Errorf("the alert %s looks at what is not there: %s (%v)", rule.Name, s, err)
				}
			}
		}
	}
	if alerts == 0 {
		t.Error("the server has no alerts")
	}
}
