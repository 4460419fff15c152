package standin

import (
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
)

// The headers of version 2 of the protocol.
const (
	tokenHeader    = "X-Aws-Ec2-Metadata-Token"
	tokenTTLHeader = "X-Aws-Ec2-Metadata-Token-Ttl-Seconds"
)

// Answer is what a request gets, before it is written.
type Answer struct {
	// Status is the HTTP status, and Body the document.
	Status int
	Body   string
	// TTL is the remaining life of the request's token in seconds; 0 leaves the header out.
	TTL int
	// Allow names the methods that would have been allowed; empty unless another one was used.
	Allow string
}

// Answer applies the rules of the protocol, in the order in which EC2 is seen to apply them.
func (s *Service) Answer(r *http.Request) Answer {
	version, path := SplitVersion(r.URL.Path)
	if path == "api/token" {
		return s.answerToken(r, version)
	}
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		return Answer{Status: http.StatusMethodNotAllowed, Allow: "GET, HEAD"}
	}
	ttl, valid := s.tokens.check(r.Header.Get(tokenHeader))
	if !valid {
		return Answer{Status: http.StatusUnauthorized}
	}
	if version == "" && path == "" {
		return Answer{Status: http.StatusOK, Body: "2021-07-15\n2022-09-24\nlatest", TTL: ttl}
	}
	body, found := s.documents.get(path)
	if version == "" || !found {
		return Answer{Status: http.StatusNotFound, TTL: ttl}
	}
	return Answer{Status: http.StatusOK, Body: body, TTL: ttl}
}

// answerToken hands out a token. A PUT that came through a proxy is refused, so that an open proxy on the machine
// can't be used to fetch one.
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
	return Answer{Status: http.StatusOK, Body: s.tokens.issue(ttl), TTL: ttl}
}

// Header sets the answer's headers and returns its body. The body of an error is a page about it.
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

// SetServer sets what every answer of EC2 carries. Each connection serves a single request.
func SetServer(h http.Header) {
	h.Set("Server", "EC2ws")
	h.Set("Connection", "close")
}

// errorPage is the XHTML page with which EC2 explains a status.
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

var versions = regexp.MustCompile(`^(latest|1\.0|\d{4}-\d{2}-\d{2})$`)

// SplitVersion takes a request's path apart: /latest/meta-data/spot/ is version "latest" of the document
// meta-data/spot. A path without a version that EC2 could have is returned with version "".
func SplitVersion(path string) (version, document string) {
	path = strings.Trim(path, "/")
	first, rest, _ := strings.Cut(path, "/")
	if !versions.MatchString(first) {
		return "", path
	}
	return first, rest
}
