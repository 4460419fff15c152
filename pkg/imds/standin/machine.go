package standin

import (
	"encoding/json"
	"time"
)

// The machine that every Service starts as. Set changes any of it.
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

// credentialsLife is how long the role's credentials claim to be valid. They are made once, so it is longer than EC2's
// six hours: longer than any rehearsal.
const credentialsLife = 30 * 24 * time.Hour

func (s *Service) setMachine() {
	for path, body := range map[string]string{
		"meta-data/instance-id":                      InstanceID,
		"meta-data/instance-type":                    InstanceType,
		"meta-data/instance-life-cycle":              "spot",
		"meta-data/hostname":                         LocalHostname,
		"meta-data/local-hostname":                   LocalHostname,
		"meta-data/local-ipv4":                       LocalIPv4,
		"meta-data/placement/availability-zone":      AvailabilityZone,
		"meta-data/placement/region":                 Region,
		"meta-data/services/domain":                  "amazonaws.com",
		"meta-data/events/maintenance/scheduled":     "[]",
		"meta-data/events/maintenance/history":       "[]",
		"dynamic/instance-identity/document":         identityDocument(time.Now()),
		"meta-data/iam/security-credentials/" + Role: credentials(time.Now()),
	} {
		s.Set(path, body)
	}
}

func identityDocument(launched time.Time) string {
	return Indented(struct {
		AccountID        string `json:"accountId"`
		Architecture     string `json:"architecture"`
		AvailabilityZone string `json:"availabilityZone"`
		ImageID          string `json:"imageId"`
		InstanceID       string `json:"instanceId"`
		InstanceType     string `json:"instanceType"`
		PendingTime      string `json:"pendingTime"`
		PrivateIP        string `json:"privateIp"`
		Region           string `json:"region"`
		Version          string `json:"version"`
	}{
		AccountID:        "123456789012",
		Architecture:     "x86_64",
		AvailabilityZone: AvailabilityZone,
		ImageID:          "ami-0a1b2c3d4e5f60718",
		InstanceID:       InstanceID,
		InstanceType:     InstanceType,
		PendingTime:      Timestamp(launched),
		PrivateIP:        LocalIPv4,
		Region:           Region,
		Version:          "2017-09-30",
	})
}

func credentials(now time.Time) string {
	return Indented(struct {
		Code            string
		LastUpdated     string
		Type            string
		AccessKeyID     string `json:"AccessKeyId"`
		SecretAccessKey string
		Token           string
		Expiration      string
	}{
		Code:            "Success",
		LastUpdated:     Timestamp(now),
		Type:            "AWS-HMAC",
		AccessKeyID:     "ASIAREHEARSALONLY000",
		SecretAccessKey: "not-a-secret-only-for-rehearsals",
		Token:           "not-a-token-only-for-rehearsals",
		Expiration:      Timestamp(now.Add(credentialsLife)),
	})
}

// Indented renders a document as EC2 writes its longer ones.
func Indented(v any) string {
	text, _ := json.MarshalIndent(v, "", "  ") // plain structs of strings: can't go wrong
	return string(text)
}

// Timestamp is a time as EC2 writes it in JSON: UTC, whole seconds.
func Timestamp(t time.Time) string {
	return t.UTC().Format(time.RFC3339)
}
