package imds

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

const (
	instancePath = "instance-id"
	// lifeCyclePath is the document that says how the instance was bought: spot, on-demand, and others. Every instance has it.
	lifeCyclePath = "instance-life-cycle"
	// identityPath is the description of the instance, as JSON. No other document has the account.
	identityPath = "../dynamic/instance-identity/document" // The SDK cleans the path.
)

// Polled says in one line, for the log, which kinds of events are polled.
func (s *Source) Polled() string {
	var polled []string
	for _, kind := range s.polledKinds() {
		polled = append(polled, string(kind))
	}
	if polled == nil {
		return "not polling the metadata service: the settings ignore every kind of event that it announces"
	}
	return "polling for " + strings.Join(polled, ", ")
}

// Instance is what the service says about the instance. A field is empty if the service does not have it, or the document could not be read.
type Instance struct {
	ID        string // such as "i-1234567890abcdef0"
	Type      string // such as "m5.large"
	LifeCycle string // such as "spot"
	Account   string
	Region    string
	Zone      string // such as "us-east-1a"
	// The addresses and names of the primary interface.
	LocalIP, LocalName, PublicIP, PublicName string
}

// Instance requests the description of the instance, one document for each field. It returns what could be read, and the joined errors of the
// documents that could not be read. If the service does not have a document, the field stays empty, without an error. If the service hangs,
// Instance waits 10 s for each document, or until ctx ends.
func (s *Source) Instance(ctx context.Context) (Instance, error) {
	var i Instance
	reader := s.newReader()
	var errs []error
	for _, item := range []struct {
		path  string
		parse func([]byte) (string, error)
		into  *string
	}{
		{instancePath, parseText, &i.ID},
		{"instance-type", parseText, &i.Type},
		{lifeCyclePath, parseText, &i.LifeCycle},
		{identityPath, parseAccount, &i.Account},
		{"placement/region", parseText, &i.Region},
		{"placement/availability-zone", parseText, &i.Zone},
		{"local-ipv4", parseText, &i.LocalIP},
		{"local-hostname", parseText, &i.LocalName},
		{"public-ipv4", parseText, &i.PublicIP},
		{"public-hostname", parseText, &i.PublicName},
	} {
		value, err := read(ctx, reader, item.path, shortDocument, item.parse)
		*item.into = value
		errs = append(errs, err)
	}
	return i, errors.Join(errs...)
}

// maxLine is the most that a document of one line may have, in bytes: an ID, a name, an address.
const maxLine = 255

// isLine reports whether a text is one line of at most maxLine printable ASCII characters without blanks. The empty text is one, too.
func isLine(text string) bool {
	return len(text) <= maxLine && !strings.ContainsFunc(text, func(r rune) bool { return r < '!' || r > '~' })
}

// parseText reads a document of one line, and drops blanks around it. Any other document, such as an error page, is an error.
func parseText(body []byte) (string, error) {
	text := strings.TrimSpace(string(body))
	if !isLine(text) {
		return "", fmt.Errorf("the answer is not one word of at most %d printable ASCII characters", maxLine)
	}
	return text, nil
}

// parseAccount reads the account from the document at identityPath; "" if the document does not have it.
func parseAccount(body []byte) (string, error) {
	var doc struct{ AccountID string }
	if err := decode(body, &doc); err != nil {
		return "", err
	}
	return parseText([]byte(doc.AccountID))
}
