package imdstest

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// InvalidError is a request that makes no sense to a simulator, with what would be right.
type InvalidError string

// Error implements error.
func (e InvalidError) Error() string { return string(e) }

// Client controls a simulator, in this process or another. Each change returns what was done, in one line, or an
// InvalidError if the simulator refuses it.
type Client struct {
	// URL is the simulator's, such as http://127.0.0.1:1338.
	URL string
	// After delays each change.
	After time.Duration
}

// Maintenance is what a Client schedules. Only Code is needed, and not even that if there is an event with this ID.
type Maintenance struct {
	Code, ID, State string
	// In is how long after the announcement the maintenance begins, and For how long it takes; 1 and 2 hours unless
	// given.
	In, For time.Duration
}

// TriggerSpot announces a spot interruption. in is how long after the announcement EC2 acts.
func (c Client) TriggerSpot(ctx context.Context, action string, in time.Duration) (string, error) {
	return c.put(ctx, "spot", url.Values{"action": {action}, "in": {in.String()}})
}

// TriggerRebalance announces a rebalance recommendation.
func (c Client) TriggerRebalance(ctx context.Context) (string, error) {
	return c.put(ctx, "rebalance", nil)
}

// TriggerMaintenance schedules one more maintenance event, or updates the one with this ID.
func (c Client) TriggerMaintenance(ctx context.Context, m Maintenance) (string, error) {
	q := url.Values{}
	setText(q, "code", m.Code)
	setText(q, "id", m.ID)
	setText(q, "state", m.State)
	setDuration(q, "in", m.In)
	setDuration(q, "for", m.For)
	return c.put(ctx, "maintenance", q)
}

// TriggerLifecycle sets the target lifecycle state.
func (c Client) TriggerLifecycle(ctx context.Context, state string) (string, error) {
	return c.put(ctx, "lifecycle", url.Values{"state": {state}})
}

// Withdraw withdraws an announcement: "spot", "rebalance", "maintenance", "lifecycle" or "all".
func (c Client) Withdraw(ctx context.Context, what string) (string, error) {
	return c.delete(ctx, what, nil)
}

// WithdrawMaintenance withdraws one maintenance event, or all if id is empty. With noHistory it just disappears.
func (c Client) WithdrawMaintenance(ctx context.Context, id string, noHistory bool) (string, error) {
	q := url.Values{}
	setText(q, "id", id)
	if noHistory {
		q.Set("history", "no")
	}
	return c.delete(ctx, "maintenance", q)
}

// Fault breaks the service.
func (c Client) Fault(ctx context.Context, f Fault) (string, error) {
	q := url.Values{"kind": {string(f.Kind)}}
	setText(q, "path", f.Path)
	setDuration(q, "over", f.Over)
	setDuration(q, "for", f.For)
	setNumber(q, "status", f.Status)
	setNumber(q, "times", f.Times)
	return c.put(ctx, "fault", q)
}

// Lift lifts all faults.
func (c Client) Lift(ctx context.Context) (string, error) { return c.delete(ctx, "fault", nil) }

// ExpireTokens makes all tokens that were handed out invalid.
func (c Client) ExpireTokens(ctx context.Context) (string, error) {
	return c.delete(ctx, "tokens", nil)
}

// Set serves a document.
func (c Client) Set(ctx context.Context, path, body string) (string, error) {
	return c.do(ctx, http.MethodPut, "document", url.Values{"path": {path}}, body)
}

// Unset removes a document.
func (c Client) Unset(ctx context.Context, path string) (string, error) {
	return c.delete(ctx, "document", url.Values{"path": {path}})
}

// State returns the simulator's state.
func (c Client) State(ctx context.Context) (State, error) {
	text, err := c.do(ctx, http.MethodGet, "", nil, "")
	if err != nil {
		return State{}, err
	}
	var state State
	if err := json.Unmarshal([]byte(text), &state); err != nil {
		return State{}, fmt.Errorf("reading the simulator's state: %w", err)
	}
	return state, nil
}

func (c Client) put(ctx context.Context, name string, q url.Values) (string, error) {
	return c.do(ctx, http.MethodPut, name, q, "")
}

func (c Client) delete(ctx context.Context, name string, q url.Values) (string, error) {
	return c.do(ctx, http.MethodDelete, name, q, "")
}

func (c Client) do(ctx context.Context, method, name string, q url.Values, body string) (string, error) {
	if q == nil {
		q = url.Values{}
	}
	setDuration(q, "after", c.After)
	address := strings.TrimSuffix(c.URL, "/") + ControlPath + name + "?" + q.Encode()
	request, err := http.NewRequestWithContext(ctx, method, address, strings.NewReader(body))
	if err != nil {
		return "", fmt.Errorf("asking the simulator: %w", err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", fmt.Errorf("asking the simulator: %w", err)
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(response.Body, 1<<20))
	if err != nil {
		return "", fmt.Errorf("reading the simulator's answer: %w", err)
	}
	switch line := strings.TrimSpace(string(text)); response.StatusCode {
	case http.StatusOK:
		return line, nil
	case http.StatusBadRequest:
		return "", InvalidError(line)
	default:
		return "", fmt.Errorf("the control API answered %d: is this nth-imds?", response.StatusCode)
	}
}

func setText(q url.Values, name, text string) {
	if text != "" {
		q.Set(name, text)
	}
}

func setDuration(q url.Values, name string, d time.Duration) {
	if d != 0 {
		q.Set(name, d.String())
	}
}

func setNumber(q url.Values, name string, n int) {
	if n != 0 {
		q.Set(name, strconv.Itoa(n))
	}
}
