package imdstest

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

// answer is what a request gets, before it is written. Faults send it late, in drips or not at all.
type answer struct {
	status int
	body   string
	// ttl is the remaining life of the request's token in seconds; 0 leaves the header out.
	ttl   int
	allow string
}

// answer applies the rules of the protocol, in the order in which EC2 is seen to apply them.
func (s *Simulator) answer(r *http.Request) answer {
	version, path := splitVersion(r.URL.Path)
	if path == "api/token" {
		return s.answerToken(r, version)
	}
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		return answer{status: http.StatusMethodNotAllowed, allow: "GET, HEAD"}
	}
	ttl, valid := s.tokens.check(r.Header.Get(tokenHeader))
	if !valid {
		return answer{status: http.StatusUnauthorized}
	}
	if version == "" && path == "" {
		return answer{status: http.StatusOK, body: "2021-07-15\n2022-09-24\nlatest", ttl: ttl}
	}
	body, found := s.documents.get(path)
	if version == "" || !found {
		return answer{status: http.StatusNotFound, ttl: ttl}
	}
	return answer{status: http.StatusOK, body: body, ttl: ttl}
}

// answerToken hands out a token. A PUT that came through a proxy is refused, so that an open proxy on the machine
// can't be used to fetch one.
func (s *Simulator) answerToken(r *http.Request, version string) answer {
	switch {
	case r.Method != http.MethodPut:
		return answer{status: http.StatusMethodNotAllowed, allow: "OPTIONS, PUT"}
	case version != "latest", r.Header.Get("X-Forwarded-For") != "":
		return answer{status: http.StatusForbidden}
	}
	ttl, err := strconv.Atoi(r.Header.Get(tokenTTLHeader))
	if err != nil || ttl < 1 || ttl > 21600 {
		return answer{status: http.StatusBadRequest}
	}
	return answer{status: http.StatusOK, body: s.tokens.issue(ttl), ttl: ttl}
}

// send writes an answer and returns its status.
func (s *Simulator) send(w http.ResponseWriter, a answer) int {
	s.traffic.answered(a.status)
	body := a.header(w)
	w.WriteHeader(a.status)
	// The client may have left; nothing is to be done about that.
	_, _ = w.Write(body)
	return a.status
}

// header sets the answer's headers and returns its body. The body of an error is a page about it.
func (a answer) header(w http.ResponseWriter) []byte {
	body, kind := a.body, "text/plain"
	if a.status != http.StatusOK {
		body, kind = errorPage(a.status), "text/html"
	}
	h := w.Header()
	setServer(h)
	h.Set("Content-Type", kind)
	h.Set("Content-Length", strconv.Itoa(len(body)))
	if a.ttl > 0 {
		h.Set(tokenTTLHeader, strconv.Itoa(a.ttl))
	}
	if a.allow != "" {
		h.Set("Allow", a.allow)
	}
	return []byte(body)
}

// setServer sets what every answer of EC2 carries. Each connection serves a single request.
func setServer(h http.Header) {
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

// splitVersion takes a request's path apart: /latest/meta-data/spot/ is version "latest" of the document
// meta-data/spot. A path without a version that EC2 could have is returned with version "".
func splitVersion(path string) (version, document string) {
	path = strings.Trim(path, "/")
	first, rest, _ := strings.Cut(path, "/")
	if !versions.MatchString(first) {
		return "", path
	}
	return first, rest
}

func isTokenPath(path string) bool {
	_, document := splitVersion(path)
	return document == "api/token"
}
