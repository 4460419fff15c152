package metrics

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/nth-project/nth/test/internal/lab"
)

// A prometheus is a server that scrapes a program in the job of its name and node_exporter in the job "node", five times a
// second, and knows the program's alerts.
type prometheus struct{ program, url string }

const prometheusConfig = `
global: { scrape_interval: 200ms, scrape_timeout: 200ms, evaluation_interval: 200ms }
rule_files: [%q]
scrape_configs:
  - { job_name: %s, static_configs: [{ targets: ["%s:9092"] }] }
  - { job_name: node, static_configs: [{ targets: ["%s:9100"] }] }
`

// startPrometheus starts a server at the address, where the others are, too.
func startPrometheus(t *testing.T, program, address string) *prometheus {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "prometheus.yml")
	text := fmt.Sprintf(prometheusConfig, shipped(t, "prometheus/"+program+".rules.yml"), program, address, address)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	start(t, "prometheus", "--config.file="+file, "--storage.tsdb.path="+filepath.Join(dir, "data"),
		"--web.listen-address="+address+":9090", "--log.level=warn")
	return &prometheus{program: program, url: "http://" + address + ":9090"}
}

// get asks the server's API, and decodes the data of the answer.
func (p *prometheus) get(path string, query url.Values, data any) error {
	answer, err := http.Get(p.url + path + "?" + query.Encode())
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	body := struct {
		Status, Error string
		Data          any
	}{Data: data}
	if err := json.NewDecoder(answer.Body).Decode(&body); err != nil {
		return err
	}
	if body.Status != "success" {
		return fmt.Errorf("prometheus answers %s: %s", answer.Status, body.Error)
	}
	return nil
}

// query returns how many series answer a query with a number, now.
func (p *prometheus) query(expr string) (int, error) {
	var data struct {
		Result []struct{ Value [2]any }
	}
	if err := p.get("/api/v1/query", url.Values{"query": {expr}}, &data); err != nil {
		return 0, err
	}
	numbers := 0
	for _, series := range data.Result {
		text, _ := series.Value[1].(string)
		if n, err := strconv.ParseFloat(text, 64); err == nil && n == n { // NaN is not itself
			numbers++
		}
	}
	return numbers, nil
}

// await waits until a query is answered with data.
func (p *prometheus) await(t *testing.T, expr string) {
	t.Helper()
	lab.Await(t, "there is data for "+expr, func() bool {
		numbers, err := p.query(expr)
		return err == nil && numbers > 0
	})
}
