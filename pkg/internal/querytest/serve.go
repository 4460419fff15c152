package querytest

import (
	"encoding/xml"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Failure is an answer that says what is wrong.
type Failure struct {
	Status        int
	Code, Message string
}

// Behind is the service itself.
type Behind struct {
	// Admit tells what keeps a request from being carried out whatever it asks for, and may note whose it is; nil if nothing does.
	Admit func(r *http.Request, call *Call) *Failure
	// Refusal says that IAM does not allow an action.
	Refusal func(action string) *Failure
	// Perform does what is asked for.
	Perform func(action string, v url.Values) (result any, problem *Failure)
	// Answer writes the result or the failure.
	Answer func(w http.ResponseWriter, action string, result any, problem *Failure)
}

// Serve answers a request that comes by a front.
func Serve(w http.ResponseWriter, r *http.Request, front *Front, behind Behind) {
	if err := r.ParseForm(); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	call := Call{Action: r.PostForm.Get("Action"), At: time.Now(), Values: r.PostForm}
	defer func() { front.keep(call) }()
	problem := behind.Admit(r, &call)
	if problem == nil && front.denies(call) {
		problem = behind.Refusal(call.Action)
	}
	fault, broken := front.fault(call)
	var result any
	late := broken && fault.Status == http.StatusOK
	if problem == nil && (!broken || fault.After || late) {
		result, problem = behind.Perform(call.Action, r.PostForm)
	}
	switch {
	case broken && fault.Status == 0:
		<-r.Context().Done()
		return
	case late:
		time.Sleep(fault.Delay)
	case broken:
		time.Sleep(fault.Delay)
		problem = &Failure{fault.Status, fault.Code, "it is a fault"}
	}
	call.Status = http.StatusOK
	if problem != nil {
		call.Status, call.Code = problem.Status, problem.Code
	}
	behind.Answer(w, call.Action, result, problem)
}

// Protocol is the query protocol as most services speak it.
type Protocol struct {
	// Service is its name in signatures and in IAM policies, such as "autoscaling", and Version and Namespace those of its API.
	Service, Version, Namespace string
}

// signed is the header of a request that is signed with version 4 of AWS's signature: by whom, and for which service.
var signed = regexp.MustCompile(`^AWS4-HMAC-SHA256 Credential=([A-Z0-9]+)/\d{8}/[a-z0-9-]+/([a-z0-9-]+)/aws4_request, `)

// Admit checks the version of a request, and that it is signed for the service, by the credentials of a role. The signature itself is not
// checked: the SDK makes it.
func (p Protocol) Admit(r *http.Request, call *Call) *Failure {
	fields := signed.FindStringSubmatch(r.Header.Get("Authorization"))
	if fields == nil || fields[2] != p.Service || r.Header.Get("X-Amz-Security-Token") == "" {
		return &Failure{http.StatusForbidden, "IncompleteSignature", "the request is not signed for " + p.Service}
	}
	call.Credential = fields[1]
	if got := call.Values.Get("Version"); got != p.Version {
		return &Failure{http.StatusBadRequest, "NoSuchVersion", "the version is " + got}
	}
	return nil
}

// Refusal is what IAM says without a policy.
func (p Protocol) Refusal(action string) *Failure {
	return &Failure{http.StatusForbidden, "AccessDenied", fmt.Sprintf("User: arn:aws:sts::123456789012:assumed-role/nodes/i-0123 is not "+
		"authorized to perform: %[1]s:%[2]s because no identity-based policy allows the %[1]s:%[2]s action", p.Service, action)}
}

// Unknown says that the service has no such action.
func Unknown(action string) *Failure {
	return &Failure{http.StatusBadRequest, "InvalidAction", "there is no action " + action}
}

const requestID = "7c6e177f-f082-11e1-ac58-3714bEXAMPLE"

// Answer writes the result or the failure.
func (p Protocol) Answer(w http.ResponseWriter, action string, result any, problem *Failure) {
	w.Header().Set("Content-Type", "text/xml")
	w.Header().Set("X-Amzn-Requestid", requestID)
	var body strings.Builder
	if problem != nil {
		_ = xml.EscapeText(&body, []byte(problem.Message)) // a Builder takes everything
		w.WriteHeader(problem.Status)
		_, _ = fmt.Fprintf(w, `<ErrorResponse xmlns=%q><Error><Type>%s</Type><Code>%s</Code><Message>%s</Message></Error><RequestId>%s</RequestId></ErrorResponse>`,
			p.Namespace, whose(problem.Status), problem.Code, body.String(), requestID)
		return
	}
	if err := xml.NewEncoder(&body).EncodeElement(result, xml.StartElement{Name: xml.Name{Local: action + "Result"}}); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	whole := fmt.Sprintf(`<%[1]sResponse xmlns=%[2]q>%[3]s<ResponseMetadata><RequestId>%[4]s</RequestId></ResponseMetadata></%[1]sResponse>`,
		action, p.Namespace, body.String(), requestID)
	w.Header().Set("Content-Length", strconv.Itoa(len(whole)))
	_, _ = w.Write([]byte(whole)) // a client that has left needs no answer
}

func whose(status int) string {
	if status < http.StatusInternalServerError {
		return "Sender"
	}
	return "Receiver"
}
