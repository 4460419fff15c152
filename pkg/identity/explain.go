package identity

import (
	"encoding/base64"
	"errors"
	"fmt"
	"regexp"

	"go.yaml.in/yaml/v3"
)

// shapes are the keys of a kubeconfig, as client-go reads them, and what their values must be. What is not listed may be anything.
var shapes = map[string]string{
	"apiVersion": "a string", "kind": "a string", "current-context": "a string",
	"clusters": "a list", "users": "a list", "contexts": "a list",

	"clusters[]": "a map", "clusters[].name": "a string", "clusters[].cluster": "a map",
	"clusters[].cluster.server": "a string", "clusters[].cluster.tls-server-name": "a string", "clusters[].cluster.proxy-url": "a string",
	"clusters[].cluster.insecure-skip-tls-verify": "true or false", "clusters[].cluster.disable-compression": "true or false",
	"clusters[].cluster.certificate-authority": "a string", "clusters[].cluster.certificate-authority-data": "base64",

	"users[]": "a map", "users[].name": "a string", "users[].user": "a map",
	"users[].user.client-certificate": "a string", "users[].user.client-certificate-data": "base64",
	"users[].user.client-key": "a string", "users[].user.client-key-data": "base64",
	"users[].user.token": "a string", "users[].user.tokenFile": "a string",
	"users[].user.username": "a string", "users[].user.password": "a string",
	"users[].user.as": "a string", "users[].user.as-uid": "a string", "users[].user.as-groups": "a list",
	"users[].user.exec": "a map", "users[].user.exec.apiVersion": "a string", "users[].user.exec.command": "a string",
	"users[].user.exec.installHint": "a string", "users[].user.exec.interactiveMode": "a string",
	"users[].user.exec.provideClusterInfo": "true or false",
	"users[].user.exec.args":               "a list", "users[].user.exec.args[]": "a string",
	"users[].user.exec.env": "a list", "users[].user.exec.env[]": "a map",
	"users[].user.exec.env[].name": "a string", "users[].user.exec.env[].value": "a string",

	"contexts[]": "a map", "contexts[].name": "a string", "contexts[].context": "a map",
	"contexts[].context.cluster": "a string", "contexts[].context.user": "a string", "contexts[].context.namespace": "a string",
}

var yamlLine = regexp.MustCompile(`line \d+`)

// errUnusable is what is said if no reason was found.
var errUnusable = errors.New(`it is no kubeconfig that Kubernetes' client can use; "kubectl config view --kubeconfig" says why`)

// explain says what is wrong with a kubeconfig that client-go does not take, by key and line. client-go's own errors quote values, and some
// of them a user's key, token and password. This one quotes nothing but keys that it knows.
func explain(document []byte) error {
	var file yaml.Node
	if err := yaml.Unmarshal(document, &file); err != nil {
		if line := yamlLine.FindString(err.Error()); line != "" {
			return fmt.Errorf("it is not YAML (%s)", line)
		}
		return errors.New("it is not YAML")
	}
	if len(file.Content) != 1 || file.Content[0].Kind != yaml.MappingNode {
		return errors.New("it is no map of keys, as a kubeconfig is")
	}
	root := file.Content[0]
	if err := checkShape(root, "", ""); err != nil {
		return err
	}
	if kind := child(root, "kind"); kind != nil && kind.Value != "Config" {
		return fmt.Errorf("line %d: kind must be Config", kind.Line)
	}
	if version := child(root, "apiVersion"); version != nil && version.Value != "v1" {
		return fmt.Errorf("line %d: apiVersion must be v1", version.Line)
	}
	for _, list := range []string{"clusters", "users", "contexts"} {
		if err := checkNames(child(root, list), list); err != nil {
			return err
		}
	}
	return checkCurrent(root)
}

// checkShape checks the values of all keys below a node. path names it, and shape is the path without indexes.
func checkShape(node *yaml.Node, path, shape string) error {
	for node.Kind == yaml.AliasNode {
		node = node.Alias
	}
	wrong := func() error { return fmt.Errorf("line %d: %s must be %s", node.Line, path, shapes[shape]) }
	switch want := shapes[shape]; {
	case node.Tag == "!!null" || want == "" && path != "":
		return nil
	case want == "a map" || path == "":
		if node.Kind != yaml.MappingNode {
			return wrong()
		}
		for i := 0; i+1 < len(node.Content); i += 2 {
			key := node.Content[i].Value
			if path != "" {
				key = "." + key
			}
			if err := checkShape(node.Content[i+1], path+key, shape+key); err != nil {
				return err
			}
		}
	case want == "a list":
		if node.Kind != yaml.SequenceNode {
			return wrong()
		}
		for i, item := range node.Content {
			if err := checkShape(item, fmt.Sprintf("%s[%d]", path, i), shape+"[]"); err != nil {
				return err
			}
		}
	default:
		return checkLeaf(node, path, want)
	}
	return nil
}

// checkLeaf checks a value that has no keys below it.
func checkLeaf(node *yaml.Node, path, want string) error {
	ok := node.Kind == yaml.ScalarNode && node.Tag == "!!str"
	switch want {
	case "true or false":
		ok = node.Tag == "!!bool"
	case "base64":
		_, err := base64.StdEncoding.DecodeString(node.Value)
		ok = ok && err == nil
	}
	if !ok {
		return fmt.Errorf("line %d: %s must be %s", node.Line, path, want)
	}
	return nil
}

// checkNames finds two items of a list with one name.
func checkNames(list *yaml.Node, key string) error {
	if list == nil {
		return nil
	}
	seen := map[string]int{}
	for i, item := range list.Content {
		name := child(item, "name")
		if name == nil {
			continue
		}
		if first, twice := seen[name.Value]; twice {
			return fmt.Errorf("line %d: %s[%d] has the same name as %s[%d] (duplicate name)", name.Line, key, i, key, first)
		}
		seen[name.Value] = i
	}
	return nil
}

// checkCurrent follows the current context.
func checkCurrent(root *yaml.Node) error {
	current := child(root, "current-context")
	if current == nil || current.Value == "" {
		return errors.New("it has no current-context")
	}
	context := child(named(root, "contexts", current.Value), "context")
	if context == nil {
		return fmt.Errorf("line %d: contexts has no context of the name in current-context", current.Line)
	}
	cluster := child(context, "cluster")
	if cluster == nil || named(root, "clusters", cluster.Value) == nil {
		return fmt.Errorf("line %d: clusters has no cluster of the name in the current context", context.Line)
	}
	if server := child(child(named(root, "clusters", cluster.Value), "cluster"), "server"); server == nil || server.Value == "" {
		return fmt.Errorf("line %d: the cluster has no server", cluster.Line)
	}
	user := child(context, "user")
	if user == nil || named(root, "users", user.Value) == nil {
		return fmt.Errorf("line %d: users has no user of the name in the current context", context.Line)
	}
	return checkUser(child(named(root, "users", user.Value), "user"))
}

func checkUser(user *yaml.Node) error {
	has := func(keys ...string) bool {
		for _, key := range keys {
			if value := child(user, key); value != nil && value.Value != "" {
				return true
			}
		}
		return false
	}
	switch exec := child(user, "exec"); {
	case user == nil:
		return errUnusable
	case has("client-certificate", "client-certificate-data") && !has("client-key", "client-key-data"):
		return fmt.Errorf("line %d: the user has a client certificate, and neither client-key nor client-key-data", user.Line)
	case has("token") && has("username", "password"):
		return fmt.Errorf("line %d: the user has a token and a password, and only one of them is allowed", user.Line)
	case exec != nil && child(exec, "command") == nil:
		return fmt.Errorf("line %d: the user's exec plugin has no command", exec.Line)
	case exec != nil && child(exec, "apiVersion") == nil:
		return fmt.Errorf("line %d: the user's exec plugin has no apiVersion", exec.Line)
	case exec != nil && child(exec, "interactiveMode") == nil:
		return fmt.Errorf("line %d: the user's exec plugin has no interactiveMode", exec.Line)
	}
	return errUnusable
}

// child returns the value of a key in a map; nil if there is none.
func child(node *yaml.Node, key string) *yaml.Node {
	if node == nil || node.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(node.Content); i += 2 {
		if node.Content[i].Value == key {
			return node.Content[i+1]
		}
	}
	return nil
}

// named returns the item of a list with that name; nil if there is none.
func named(root *yaml.Node, list, name string) *yaml.Node {
	items := child(root, list)
	if items == nil {
		return nil
	}
	for _, item := range items.Content {
		if found := child(item, "name"); found != nil && found.Value == name {
			return item
		}
	}
	return nil
}
