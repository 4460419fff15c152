package migration

import (
	"encoding/json"
	"fmt"
	"slices"

	"sigs.k8s.io/yaml"
)

// dependency is the name of the chart, under which another one that depends on it has its values.
const dependency = "aws-node-termination-handler"

// chart takes in the values of the Helm chart, or of one that depends on it.
func (s *Settings) chart(values map[string]any) {
	own, depends := values[dependency].(map[string]any)
	if !depends {
		s.ownChart(values)
		return
	}
	if len(values) > 1 {
		s.remarks = append(s.remarks, "values beside "+dependency+": they are another chart's, and not read")
	}
	s.ownChart(own)
}

// ownChart takes in the values of the Helm chart, in the order in which they become variables of the container: extraEnv is the last.
func (s *Settings) ownChart(values map[string]any) {
	for _, name := range []string{"NODE_NAME", "POD_NAME", "NAMESPACE"} {
		s.scope[name] = known{from: "the pod's own fields"} // The chart sets them before all others.
	}
	for _, r := range rules {
		if value := values[r.chart]; r.chart != "" && value != nil {
			s.define(r.env, s.expanded(text(value)))
		}
	}
	s.chartWebhook(values)
	s.extra(values["extraEnv"])
	for _, key := range sorted(values) {
		switch {
		case ruleOfChart(key) != nil, slices.Contains(aboutWebhook, key), key == "extraEnv":
		case slices.Contains(aboutNodes, key) && text(values[key]) == "":
		case slices.Contains(aboutPod, key):
			s.pod = append(s.pod, key)
		case text(values[key]) != "":
			s.unknown = append(s.unknown, key)
		}
	}
}

// aboutWebhook are the chart's values about the webhook that name objects of the cluster.
var aboutWebhook = []string{"webhookURLSecretName", "webhookTemplateConfigMapName", "webhookTemplateConfigMapKey"}

// chartWebhook takes in what stands in objects of the cluster. The chart uses it in the place of what its values say.
func (s *Settings) chartWebhook(values map[string]any) {
	secret, template, key := text(values[aboutWebhook[0]]), text(values[aboutWebhook[1]]), text(values[aboutWebhook[2]])
	if secret != "" {
		s.define("WEBHOOK_URL", known{from: "the Secret " + secret})
	}
	switch {
	case template != "" && key != "":
		s.define("WEBHOOK_TEMPLATE_FILE", known{from: "the ConfigMap " + template})
	case template != key:
		s.remarks = append(s.remarks, "webhookTemplateConfigMapName and webhookTemplateConfigMapKey: one does not count without the other")
	}
}

// extra takes in the chart's extraEnv: a list of variables, as in a container.
func (s *Settings) extra(value any) {
	var list []variable
	encoded, err := json.Marshal(value)
	if err == nil {
		err = yaml.Unmarshal(encoded, &list) // It takes a number for a text, as people write them.
	}
	if err != nil {
		s.unknown = append(s.unknown, "extraEnv, which is no list of variables")
	}
	s.variables(list, nil, "")
}

// text is a value of the chart as its template would print it.
func text(value any) string {
	switch v := value.(type) {
	case nil:
		return ""
	case string:
		return v
	case map[string]any, []any:
		encoded, err := json.Marshal(v)
		if err != nil || string(encoded) == "{}" || string(encoded) == "[]" {
			return ""
		}
		return string(encoded)
	default:
		return fmt.Sprint(v)
	}
}
