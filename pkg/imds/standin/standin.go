// Package standin answers as EC2's instance metadata service does, version 2: documents, behind session tokens.
//
// "nth rehearse" serves a Service in its own process. The simulator for tests, pkg/imds/imdstest, adds faults and counts. A new Service serves a
// healthy spot instance for which nothing is announced. Everything is safe for concurrent use. A change is visible to every request that begins
// after the call returned.
package standin

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Service is the metadata service of one instance. It is an http.Handler.
type Service struct {
	mu        sync.Mutex
	documents map[string]string    // by the path below the version, such as "meta-data/instance-id"
	tokens    map[string]time.Time // until when each token is valid
}

// New returns the metadata service of a healthy spot instance for which nothing is announced.
func New() *Service {
	return &Service{documents: machine(time.Now()), tokens: map[string]time.Time{}}
}

// ServeHTTP answers as EC2 would.
func (s *Service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	answer := s.Answer(r)
	body := answer.Header(w)
	w.WriteHeader(answer.Status)
	_, _ = w.Write(body) // The client may have left.
}

const (
	spotPath            = "meta-data/spot/instance-action"
	terminationTimePath = "meta-data/spot/termination-time"
)

// SetSpot announces a spot interruption: action is "terminate", "stop" or "hibernate", and at is when EC2 acts.
func (s *Service) SetSpot(action string, at time.Time) {
	s.Set(spotPath, fmt.Sprintf(`{"action": %q, "time": %q}`, action, Timestamp(at)))
	if action == "terminate" {
		s.Set(terminationTimePath, Timestamp(at))
	} else {
		s.Unset(terminationTimePath)
	}
}

// ClearSpot withdraws the spot interruption, and reports whether there was one.
func (s *Service) ClearSpot() bool {
	s.Unset(terminationTimePath)
	return s.Unset(spotPath)
}

// The headers of version 2 of the protocol.
const (
	tokenHeader    = "X-Aws-Ec2-Metadata-Token"
	tokenTTLHeader = "X-Aws-Ec2-Metadata-Token-Ttl-Seconds"
)

// Answer is an HTTP answer before it is written.
type Answer struct {
	// Status is the HTTP status, and Body the document.
	Status int
	Body   string
	// TTL is how long the request's token is still valid, in seconds; with 0 the answer has no such header.
	TTL int
	// Allow names the allowed methods if the request has another method; otherwise it is empty.
	Allow string
}

// Answer returns the answer to a request. It checks path, method and token in the same sequence as EC2.
func (s *Service) Answer(r *http.Request) Answer {
	version, path := SplitVersion(r.URL.Path)
	if path == "api/token" {
		return s.answerToken(r, version)
	}
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		return Answer{Status: http.StatusMethodNotAllowed, Allow: "GET, HEAD"}
	}
	ttl := s.lifetime(r.Header.Get(tokenHeader))
	if ttl == 0 {
		return Answer{Status: http.StatusUnauthorized}
	}
	if version == "" && path == "" {
		return Answer{Status: http.StatusOK, Body: "2021-07-15\n2022-09-24\nlatest", TTL: ttl}
	}
	body, found := s.Get(path)
	if version == "" || !found {
		return Answer{Status: http.StatusNotFound, TTL: ttl}
	}
	return Answer{Status: http.StatusOK, Body: body, TTL: ttl}
}

// answerToken answers a request for a token. Like EC2, it refuses a request that came through a proxy: no client may get a token through an open
// proxy on the machine.
func (s *Service) answerToken(r *http.Request, version string) Answer {
	switch {
	case r.Method != http.MethodPut:
		return Answer{Status: http.StatusMethodNotAllowed, Allow: "OPTIONS, PUT"}
	case version != "latest", r.Header.Get("X-Forwarded-For") != "":
		return Answer{Status: http.StatusForbidden}
	}
	ttl, err := strconv.Atoi(r.Header.Get(tokenTTLHeader))
	if err != nil || ttl < 1 || ttl > 21600 {
		return Answer{Status: http.StatusBadRequest}
	}
	return Answer{Status: http.StatusOK, Body: s.issue(ttl), TTL: ttl}
}

// Header sets the answer's headers and returns the body to write. For an error, that is a page about the status.
func (a Answer) Header(w http.ResponseWriter) []byte {
	body, kind := a.Body, "text/plain"
	if a.Status != http.StatusOK {
		body, kind = errorPage(a.Status), "text/html"
	}
	h := w.Header()
	SetServer(h)
	h.Set("Content-Type", kind)
	h.Set("Content-Length", strconv.Itoa(len(body)))
	if a.TTL > 0 {
		h.Set(tokenTTLHeader, strconv.Itoa(a.TTL))
	}
	if a.Allow != "" {
		h.Set("Allow", a.Allow)
	}
	return []byte(body)
}

// SetServer sets the headers of all of EC2's answers. Each connection serves a single request.
func SetServer(h http.Header) {
	h.Set("Server", "EC2ws")
	h.Set("Connection", "close")
}

// errorPage returns the XHTML page with which EC2 explains a status.
func errorPage(status int) string {
	title := fmt.Sprintf("%d - %s", status, http.StatusText(status))
	return `<?xml version="1.0" encoding="iso-8859-1"?>
<!DOCTYPE html PUBLIC "-//W3C//DTD XHTML 1.0 Transitional//EN"
	"http://www.w3.org/TR/xhtml1/DTD/xhtml1-transitional.dtd">
<html xmlns="http://www.w3.org/1999/xhtml" xml:lang="en" lang="en">
 <head>
  <title>` + title + `</title>
 </head>
 <body>
  <h1>` + title + `</h1>
 </body>
</html>
`
}

// versions matches the versions at which documents are served.
var versions = regexp.MustCompile(`^(latest|1\.0|\d{4}-\d{2}-\d{2})$`)

// SplitVersion splits a request's path: /latest/meta-data/spot/ is version "latest" of the document meta-data/spot. The version is "" if the path
// does not begin with a valid one.
func SplitVersion(path string) (version, document string) {
	path = strings.Trim(path, "/")
	first, rest, _ := strings.Cut(path, "/")
	if !versions.MatchString(first) {
		return "", path
	}
	return first, rest
}

// Get returns what is served at a path: a document or, if the path is a folder, the list of its content.
func (s *Service) Get(path string) (body string, found bool) {
	path = DocumentPath(path)
	s.mu.Lock()
	defer s.mu.Unlock()
	if body, found = s.documents[path]; found {
		return body, true
	}
	names := s.list(path)
	return strings.Join(names, "\n"), len(names) > 0
}

// list returns the sorted names in a folder. As on EC2, a slash follows the name of a folder, except in the list of the top. s.mu is held.
func (s *Service) list(folder string) []string {
	prefix, slash := folder+"/", "/"
	if folder == "" {
		prefix, slash = "", ""
	}
	names := map[string]bool{}
	for path := range s.documents {
		below, inside := strings.CutPrefix(path, prefix)
		if !inside {
			continue
		}
		name, _, isFolder := strings.Cut(below, "/")
		if isFolder {
			name += slash
		}
		names[name] = true
	}
	return slices.Sorted(maps.Keys(names))
}

// Set serves body at a path such as "/latest/meta-data/instance-id" or "meta-data/instance-id". It replaces the document that was served at the
// path, also an announcement.
func (s *Service) Set(path, body string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.documents[DocumentPath(path)] = body
}

// Unset removes the document at path, and reports whether it existed.
func (s *Service) Unset(path string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	path = DocumentPath(path)
	_, found := s.documents[path]
	delete(s.documents, path)
	return found
}

// DocumentPath returns a document's path without a version, and without slashes at its ends.
func DocumentPath(path string) string {
	_, document := SplitVersion(path)
	return document
}

// The instance that a new Service serves. Set changes any document.
const (
	InstanceID       = "i-0a1b2c3d4e5f60718"
	InstanceType     = "m7i.large"
	AvailabilityZone = "eu-central-1a"
	Region           = "eu-central-1"
	LocalIPv4        = "10.0.12.34"
	LocalHostname    = "ip-10-0-12-34.eu-central-1.compute.internal"
	// Role is the instance's IAM role. Its credentials are made up and open nothing.
	Role = "nth-rehearsal"
)

// credentialsTTL is longer than EC2's six hours, and than any rehearsal, because the credentials are made only once.
const credentialsTTL = 30 * 24 * time.Hour

// machine returns the documents of a healthy spot instance that was launched now.
func machine(now time.Time) map[string]string {
	return map[string]string{
		"meta-data/instance-id":                  InstanceID,
		"meta-data/instance-type":                InstanceType,
		"meta-data/instance-life-cycle":          "spot",
		"meta-data/hostname":                     LocalHostname,
		"meta-data/local-hostname":               LocalHostname,
		"meta-data/local-ipv4":                   LocalIPv4,
		"meta-data/placement/availability-zone":  AvailabilityZone,
		"meta-data/placement/region":             Region,
		"meta-data/services/domain":              "amazonaws.com",
		"meta-data/events/maintenance/scheduled": "[]",
		"meta-data/events/maintenance/history":   "[]",
		"dynamic/instance-identity/document": Indented(map[string]string{
			"accountId": "123456789012", "architecture": "x86_64", "availabilityZone": AvailabilityZone, "imageId": "ami-0a1b2c3d4e5f60718",
			"instanceId": InstanceID, "instanceType": InstanceType, "pendingTime": Timestamp(now), "privateIp": LocalIPv4, "region": Region,
			"version": "2017-09-30",
		}),
		"meta-data/iam/security-credentials/" + Role: Indented(map[string]string{
			"Code": "Success", "LastUpdated": Timestamp(now), "Type": "AWS-HMAC", "AccessKeyId": "ASIAREHEARSALONLY000",
			"SecretAccessKey": "not-a-secret-only-for-rehearsals", "Token": "not-a-token-only-for-rehearsals",
			"Expiration": Timestamp(now.Add(credentialsTTL)),
		}),
	}
}

// Indented returns v as JSON with line breaks, as EC2 writes longer documents.
func Indented(v any) string {
	text, _ := json.MarshalIndent(v, "", "  ") // It does not fail: v has only strings.
	return string(text)
}

// Timestamp formats a time as EC2 does in most documents: in UTC, with whole seconds.
func Timestamp(t time.Time) string {
	return t.UTC().Format(time.RFC3339)
}

// issue makes a token that is valid for ttl seconds. Like EC2's it has 56 characters of base64.
func (s *Service) issue(ttl int) string {
	random := make([]byte, 40)
	_, _ = rand.Read(random) // Read never returns an error, by its documentation.
	token := base64.URLEncoding.EncodeToString(random)

	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.tokens, func(_ string, until time.Time) bool { return time.Until(until) <= 0 })
	s.tokens[token] = time.Now().Add(time.Duration(ttl) * time.Second)
	return token
}

// lifetime returns for how many seconds a token is still valid, rounded up; 0 if it is not valid.
func (s *Service) lifetime(token string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return int((max(time.Until(s.tokens[token]), 0) + time.Second - 1) / time.Second)
}
