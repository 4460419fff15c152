package identity_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/nth-project/nth/pkg/identity"
)

// canary is in every value of a kubeconfig that may be secret. It looks like what is in tokens and keys.
const canary = "q9Zx41bK0fTw8LmRv7Yc2GhU"

// kubeconfigWithCanaries is a kubeconfig, with two of everything.
func kubeconfigWithCanaries() map[string]any {
	type object = map[string]any
	encoded := base64.StdEncoding.EncodeToString([]byte("-----BEGIN PRIVATE KEY-----\n" + canary + "\n-----END PRIVATE KEY-----"))
	user := func(name string) object {
		return object{"name": name, "user": object{
			"client-certificate-data": encoded, "client-key-data": encoded, "token": canary, "tokenFile": "/etc/kubernetes/" + canary,
			"username": canary, "password": canary, "as": canary, "as-groups": []any{canary}, "as-user-extra": object{"a": []any{canary}},
			"auth-provider": object{"name": canary, "config": object{"id-token": canary}},
			"exec": object{
				"apiVersion": "client.authentication.k8s.io/v1", "command": "/usr/bin/aws", "args": []any{"--token", canary},
				"env": []any{object{"name": "TOKEN", "value": canary}}, "installHint": canary, "interactiveMode": "Never", "provideClusterInfo": true,
			},
			"extensions": []any{object{"name": "a", "extension": object{"b": canary}}},
		}}
	}
	cluster := func(name string) object {
		return object{"name": name, "cluster": object{
			"server": "https://robot:" + canary + "@10.0.0.1:6443/" + canary, "certificate-authority-data": encoded, "tls-server-name": canary,
			"proxy-url": "http://robot:" + canary + "@10.0.0.2:3128", "insecure-skip-tls-verify": false, "certificate-authority": "/pki/" + canary,
			"extensions": []any{object{"name": "a", "extension": object{"b": canary}}},
		}}
	}
	context := func(name string) object {
		return object{"name": name, "context": object{"cluster": canary + name, "user": canary + name, "namespace": canary}}
	}
	return object{
		"apiVersion": "v1", "kind": "Config", "current-context": canary + "0", "preferences": object{"colors": true},
		"clusters":   []any{cluster(canary + "0"), cluster(canary + "1")},
		"users":      []any{user(canary + "0"), user(canary + "1")},
		"contexts":   []any{context(canary + "0"), context(canary + "1")},
		"extensions": []any{object{"name": "a", "extension": object{"b": canary}}},
	}
}

// valueAt is one value in a document.
type valueAt struct {
	get func() any
	set func(any)
}

// valuesIn lists all values below one, in a fixed order.
func valuesIn(in any) []valueAt {
	var all []valueAt
	switch in := in.(type) {
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(in)) {
			all = append(all, valueAt{func() any { return in[key] }, func(v any) { in[key] = v }})
			all = append(all, valuesIn(in[key])...)
		}
	case []any:
		for i := range in {
			all = append(all, valueAt{func() any { return in[i] }, func(v any) { in[i] = v }})
			all = append(all, valuesIn(in[i])...)
		}
	}
	return all
}

// trim leaves one way to prove the identity: a plugin, a token or a certificate; or all of them, which is a fault by itself.
func trim(whole map[string]any, way int) {
	if way == 0 {
		return
	}
	user := whole["users"].([]any)[0].(map[string]any)["user"].(map[string]any)
	for key, of := range map[string]int{
		"exec": 1, "token": 2, "client-certificate-data": 3, "client-key-data": 3, "tokenFile": 0, "username": 0, "password": 0, "auth-provider": 0,
	} {
		if of != way {
			delete(user, key)
		}
	}
	cluster := whole["clusters"].([]any)[0].(map[string]any)["cluster"].(map[string]any)
	delete(cluster, "certificate-authority")
	delete(cluster, "certificate-authority-data")
}

// faulty returns a kubeconfig with one fault, by those random numbers.
func faulty(t *testing.T, what, where, how int) []byte {
	t.Helper()
	whole := kubeconfigWithCanaries()
	trim(whole, how/8%4)
	all := valuesIn(whole)
	at := all[where%len(all)]
	switch what % 7 {
	case 0: // another value
		at.set([]any{nil, 12345, true, "", canary, []any{canary}, map[string]any{canary: canary}, "%zz://" + canary}[how%8])
	case 1: // a value from elsewhere
		at.set(all[how%len(all)].get())
	case 2: // two of one name
		list := []string{"clusters", "users", "contexts"}[how%3]
		items := whole[list].([]any)
		items[1].(map[string]any)["name"] = items[0].(map[string]any)["name"]
	}
	text, err := json.MarshalIndent(whole, "", " ")
	if err != nil { // A value in itself.
		return []byte("{")
	}
	if how%2 == 0 {
		if text, err = yaml.JSONToYAML(text); err != nil {
			t.Fatal(err)
		}
	}
	i := where % len(text)
	switch what % 7 {
	case 3: // a byte less
		text = slices.Delete(text, i, i+1)
	case 4: // a byte more
		text = slices.Insert(text, i, []byte("\n\t:-{}[]&*!%@`'\"#|>")[how%19])
	case 5: // the end is missing
		text = text[:i]
	case 6: // a piece is there twice
		text = slices.Insert(text, i, text[i:min(len(text), i+how%80)]...)
	}
	return text
}

// mustNotShowTheCanary looks for what nth says of a kubeconfig, and of one with which a client can be made.
func mustNotShowTheCanary(t *testing.T, document []byte) {
	t.Helper()
	k := identity.New(identity.Options{Document: document})
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // Nobody is asked.
	for _, line := range identity.Describe(ctx, k) {
		for _, secret := range []string{canary, base64.StdEncoding.EncodeToString([]byte(canary))[:16]} {
			if strings.Contains(line, secret) {
				t.Fatalf("it says %q of\n%s", line, document)
			}
		}
		if strings.ContainsAny(line, "\n\r") {
			t.Fatalf("it says %q, in several lines, of\n%s", line, document)
		}
	}
}

func FuzzKubeconfig_FaultShowsNoValue(f *testing.F) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		f.Add(random.IntN(7), random.IntN(1<<20), random.IntN(1<<20))
	}
	f.Fuzz(func(t *testing.T, what, where, how int) {
		mustNotShowTheCanary(t, faulty(t, max(what, 0), max(where, 0), max(how, 0)))
	})
}
