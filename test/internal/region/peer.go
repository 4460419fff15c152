package region

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"sync"

	"github.com/nth-project/nth/test/internal/lab"
	"github.com/nth-project/nth/test/tools"
)

// peer is a running fauxqs. It ends with this process.
type peer struct{ url string }

// sharedPeer returns the one of this process: its queues do not know each other.
var sharedPeer = sync.OnceValues(startPeer)

// startPeer fetches fauxqs if it is not there, starts it, and waits until it listens.
func startPeer() (*peer, error) {
	if err := tools.Build(context.Background(), os.Stderr, "fauxqs"); err != nil {
		return nil, err
	}
	node, err := tools.Path("node")
	if err != nil {
		return nil, err
	}
	program, err := tools.Path("fauxqs")
	if err != nil {
		return nil, err
	}
	command := exec.Command(node, "--no-warnings", program)
	command.Env = append(os.Environ(), "FAUXQS_PORT=0", "FAUXQS_DEFAULT_REGION="+Name)
	said, err := command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := lab.StartBound(command, func(error) {}); err != nil {
		return nil, err
	}
	lines := bufio.NewScanner(said)
	for lines.Scan() {
		if found := listening.FindSubmatch(lines.Bytes()); found != nil {
			go func() { _, _ = io.Copy(io.Discard, said) }() // it goes on to tell of each request
			return &peer{url: string(found[1])}, nil
		}
	}
	return nil, errors.Join(errors.New("fauxqs ended before it listened"), lines.Err())
}

var listening = regexp.MustCompile(`Server listening at (http://127\.0\.0\.1:\d+)`)

func (p *peer) createQueue(ctx context.Context, name string) (url string, err error) {
	var answer struct{ QueueURL string }
	err = p.call(ctx, "CreateQueue", map[string]any{"QueueName": name}, &answer)
	return answer.QueueURL, err
}

func (p *peer) send(ctx context.Context, queue string, bodies []string) error {
	for some := range slices.Chunk(bodies, 10) {
		var entries []map[string]any
		for i, body := range some {
			entries = append(entries, map[string]any{"Id": strconv.Itoa(i), "MessageBody": body})
		}
		var answer struct{ Failed []any }
		if err := p.call(ctx, "SendMessageBatch", map[string]any{"QueueUrl": queue, "Entries": entries}, &answer); err != nil {
			return err
		}
		if len(answer.Failed) > 0 {
			return fmt.Errorf("sending messages: %v", answer.Failed)
		}
	}
	return nil
}

func (p *peer) count(ctx context.Context, queue string) (visible, inFlight int, err error) {
	const one, other = "ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"
	var answer struct{ Attributes map[string]string }
	err = p.call(ctx, "GetQueueAttributes", map[string]any{"QueueUrl": queue, "AttributeNames": []string{one, other}}, &answer)
	if err != nil {
		return 0, 0, err
	}
	visible, err = strconv.Atoi(answer.Attributes[one])
	if err != nil {
		return 0, 0, err
	}
	inFlight, err = strconv.Atoi(answer.Attributes[other])
	return visible, inFlight, err
}

// call asks for one action in SQS's JSON protocol. fauxqs checks no signature.
func (p *peer) call(ctx context.Context, action string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, p.url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/x-amz-json-1.0")
	request.Header.Set("X-Amz-Target", "AmazonSQS."+action)
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return fmt.Errorf("asking for %s: %w", action, err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return fmt.Errorf("asking for %s: %w", action, err)
	}
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("asking for %s: %s: %s", action, answer.Status, text)
	}
	if len(text) == 0 {
		return nil
	}
	return json.Unmarshal(text, out)
}
