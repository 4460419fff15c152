package virtual

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// A line is a connection to qemu's monitor or to the agent in the machine. Both are asked in JSON, one question at a
// time; the monitor also tells of events.
type line struct {
	conn   net.Conn
	asking sync.Mutex
	answer chan reply
	closed chan struct{}     // the other end is gone
	event  func(name string) // called for each event
}

// A reply is a line of JSON that arrives: an answer, or an event.
type reply struct {
	Return json.RawMessage `json:"return"`
	Error  *refusal        `json:"error"`
	Event  string          `json:"event"`
}

// A refusal is why a question was not answered.
type refusal struct {
	Class string `json:"class"`
	Desc  string `json:"desc"`
}

// Error is what a person reads.
func (r *refusal) Error() string { return r.Class + ": " + r.Desc }

var errClosed = errors.New("the machine is gone")

// dial connects to a socket of qemu.
func dial(path string, event func(string)) (*line, error) {
	conn, err := net.Dial("unix", path)
	if err != nil {
		return nil, err
	}
	l := &line{conn: conn, answer: make(chan reply), closed: make(chan struct{}), event: event}
	go l.listen()
	return l, nil
}

func (l *line) listen() {
	defer close(l.closed)
	lines := bufio.NewReader(l.conn)
	for {
		text, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		var r reply
		switch err := json.Unmarshal(text, &r); {
		case err != nil: // the agent begins with a byte that is no JSON when it was restarted
		case r.Event != "":
			l.event(r.Event)
		case r.Return != nil || r.Error != nil:
			select {
			case l.answer <- r:
			case <-time.After(patience): // nobody has waited for it
			}
		}
	}
}

// ask asks one question and decodes the answer into result, unless that is nil.
func (l *line) ask(question string, arguments, result any) error {
	l.asking.Lock()
	defer l.asking.Unlock()
	text, err := json.Marshal(map[string]any{"execute": question, "arguments": arguments})
	if err != nil {
		return fmt.Errorf("asking %s: %w", question, err)
	}
	if _, err := l.conn.Write(append(text, '\n')); err != nil {
		return fmt.Errorf("asking %s: %w", question, err)
	}
	select {
	case r := <-l.answer:
		switch {
		case r.Error != nil:
			return fmt.Errorf("asking %s: %w", question, r.Error)
		case result != nil:
			return json.Unmarshal(r.Return, result)
		}
		return nil
	case <-l.closed:
		return fmt.Errorf("asking %s: %w", question, errClosed)
	case <-time.After(patience):
		return fmt.Errorf("asking %s: there is no answer", question)
	}
}
