package instances

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/aws/smithy-go"
)

// EC2 is asked one question. The SDK's package for it knows some 700, and takes longer to compile than all the rest of
// the program. So the one is put here, in EC2's query protocol, with the SDK's own credentials, signatures and rules for
// repeating.

// apiVersion is the version of EC2's API, which has not changed in ten years.
const apiVersion = "2016-11-15"

// page is how many instances EC2 describes in one answer; it is the most.
const page = 1000

// longestAnswer bounds the answer to one request, in bytes: a page takes some megabytes.
const longestAnswer = 64 << 20

const (
	// attemptPatience bounds one attempt: a connection that is dead must not use up all the time there is.
	attemptPatience = 8 * time.Second
	// longestPause is how long a request is left alone, at most, that fails in a way that may pass. It is repeated for as
	// long as there is time: a node whose instance is gone in two minutes may wait for the answer. Since there is one
	// request for up to 200 questions, that is a request each two seconds even in a storm.
	longestPause = 2 * time.Second
)

// hurried are the rules for repeating what fails.
func hurried(o *retry.StandardOptions) {
	o.MaxAttempts, o.MaxBackoff = int(patience/longestPause), longestPause
}

// query asks EC2.
type query struct {
	cfg      aws.Config
	endpoint string
	client   aws.HTTPClient
	signer   *v4.Signer
	retryer  *retry.Standard
}

func newQuery(cfg aws.Config) *query {
	q := &query{
		cfg: cfg, endpoint: endpointOf(cfg), client: cfg.HTTPClient, signer: v4.NewSigner(),
		retryer: retry.NewStandard(hurried),
	}
	if q.client == nil {
		q.client = &http.Client{Timeout: patience}
	}
	return q
}

// endpointOf is where EC2 is asked in a region.
func endpointOf(cfg aws.Config) string {
	if cfg.BaseEndpoint != nil {
		return strings.TrimSuffix(*cfg.BaseEndpoint, "/") + "/"
	}
	domain := "amazonaws.com"
	if strings.HasPrefix(cfg.Region, "cn-") {
		domain += ".cn"
	}
	return fmt.Sprintf("https://ec2.%s.%s/", cfg.Region, domain)
}

// described is the answer, as far as it is read.
type described struct {
	NextToken    string `xml:"nextToken"`
	Reservations []struct {
		Instances []rawInstance `xml:"instancesSet>item"`
	} `xml:"reservationSet>item"`
}

type rawInstance struct {
	ID    string `xml:"instanceId"`
	State string `xml:"instanceState>name"`
	DNS   string `xml:"privateDnsName"`
	Tags  []struct {
		Key   string `xml:"key"`
		Value string `xml:"value"`
	} `xml:"tagSet>item"`
}

// tag is the value of a tag; "" without it.
func (i rawInstance) tag(key string) string {
	for _, tag := range i.Tags {
		if tag.Key == key {
			return tag.Value
		}
	}
	return ""
}

// refusal is EC2's answer to a request that it does not fulfil.
type refusal struct {
	Code    string `xml:"Errors>Error>Code"`
	Message string `xml:"Errors>Error>Message"`
}

// instances asks for all instances that a filter lets through, page by page.
func (q *query) instances(ctx context.Context, filter string, values []string) ([]rawInstance, error) {
	form := url.Values{
		"Action": {"DescribeInstances"}, "Version": {apiVersion}, "MaxResults": {strconv.Itoa(page)}, "Filter.1.Name": {filter},
	}
	for i, value := range values {
		form.Set("Filter.1.Value."+strconv.Itoa(i+1), value)
	}
	var all []rawInstance
	for {
		answer, err := q.repeat(ctx, form.Encode())
		if err != nil {
			return nil, err
		}
		for _, r := range answer.Reservations {
			all = append(all, r.Instances...)
		}
		if answer.NextToken == "" {
			return all, nil
		}
		form.Set("NextToken", answer.NextToken)
	}
}

// repeat asks until there is an answer, no use in asking again, or no time.
func (q *query) repeat(ctx context.Context, form string) (described, error) {
	for attempt := 1; ; attempt++ {
		answer, err := q.ask(ctx, form)
		if err == nil || ctx.Err() != nil || !q.retryer.IsErrorRetryable(err) {
			return answer, err
		}
		pause, delayErr := q.retryer.RetryDelay(attempt, err)
		if delayErr != nil {
			return described{}, err
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return described{}, err
		case <-timer.C:
		}
	}
}

// ask makes one request.
func (q *query) ask(ctx context.Context, form string) (described, error) {
	ctx, cancel := context.WithTimeout(ctx, attemptPatience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, q.endpoint, strings.NewReader(form))
	if err != nil {
		return described{}, err
	}
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded; charset=utf-8")
	if q.cfg.Credentials == nil {
		return described{}, errors.New("there are no credentials")
	}
	credentials, err := q.cfg.Credentials.Retrieve(ctx)
	if err != nil {
		return described{}, fmt.Errorf("looking for credentials: %w", err)
	}
	sum := sha256.Sum256([]byte(form))
	if err := q.signer.SignHTTP(ctx, credentials, request, hex.EncodeToString(sum[:]), "ec2", q.cfg.Region, time.Now()); err != nil {
		return described{}, fmt.Errorf("signing the request: %w", err)
	}
	response, err := q.client.Do(request)
	if err != nil {
		return described{}, err
	}
	defer func() { _ = response.Body.Close() }() // It was read.
	body, err := io.ReadAll(io.LimitReader(response.Body, longestAnswer))
	if err != nil {
		return described{}, fmt.Errorf("reading the answer: %w", err)
	}
	return read(response.StatusCode, body)
}

// read understands an answer.
func read(status int, body []byte) (described, error) {
	decoder := xml.NewDecoder(bytes.NewReader(body))
	if status == http.StatusOK {
		var answer described
		if err := decoder.Decode(&answer); err != nil {
			return described{}, fmt.Errorf("reading the answer: %w", err)
		}
		return answer, nil
	}
	var no refusal
	if err := decoder.Decode(&no); err != nil || no.Code == "" {
		no.Code, no.Message = "InternalError", fmt.Sprintf("HTTP status %d", status)
	}
	return described{}, &smithy.GenericAPIError{Code: no.Code, Message: no.Message}
}
