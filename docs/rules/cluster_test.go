package rules_test

import (
	"fmt"
	"go/ast"
	"slices"
)

// mayTouch says for the packages beside drain what they may do with Nodes and Pods, by the client's methods.
var mayTouch = map[string]map[string][]string{
	// Claims, and taints, which a node itself may not set; and whether another pod of nth-queue's is there.
	"pkg/fleet":   {"Nodes": {"Get", "List", "Watch", "Patch", "Delete"}, "Pods": {"List"}},
	"pkg/kubelet": {"Nodes": {"Get"}},
	"pkg/notify":  {"Nodes": {"Get", "PatchStatus"}},
}

var clusterRules = []rule{
	{
		name:  "only drain writes to the node and its pods",
		why:   "what nth does to a node, and what it undoes, is in one package; kubelet reads the node, notify sets a condition, and fleet claims, taints, deletes what EC2 has terminated, and looks for its like",
		check: each(touches),
		breaks: map[string]string{
			"pkg/notify/a.go":  "package notify\nvar _ = client.CoreV1().Nodes().Patch(ctx)",
			"pkg/kubelet/a.go": "package kubelet\nvar _ = client.CoreV1().Pods(\"\").List(ctx)",
			"pkg/agent/a.go":   "package agent\nfunc f() { nodes := client.CoreV1().Nodes(); nodes.Get(ctx) }",
		},
		keeps: map[string]string{
			"pkg/notify/a.go":               "package notify\nvar _ = client.CoreV1().Nodes().PatchStatus(ctx)",
			"pkg/drain/a.go":                "package drain\nvar _ = client.CoreV1().Pods(\"\").EvictV1(ctx)",
			"pkg/notify/a_test.go":          "package notify\nvar _ = client.CoreV1().Nodes().Create(ctx)",
			"pkg/kubelet/a.go":              "package kubelet\nvar _ = client.CoreV1().Nodes().Get(ctx)",
			"test/internal/lab/workload.go": "package lab\nvar _ = client.CoreV1().Pods(\"\").Create(ctx)",
			"pkg/policy/waiting.go":         "package policy\nvar _ = list.Nodes",
		},
	},
}

// touches finds client.Nodes() and client.Pods(), unless an allowed method of theirs is called at once.
func touches(s source) []string {
	if s.test() || s.in("pkg/drain") {
		return nil
	}
	allowed := map[ast.Expr]bool{}
	var findings []string
	ast.Inspect(s.file, func(n ast.Node) bool {
		if selector, ok := n.(*ast.SelectorExpr); ok {
			if of := clientOf(selector.X); of != "" && slices.Contains(mayTouch[s.dir()][of], selector.Sel.Name) {
				allowed[selector.X] = true
			}
		}
		if expr, ok := n.(ast.Expr); ok && clientOf(expr) != "" && !allowed[expr] {
			findings = append(findings, fmt.Sprintf("%s: uses the client's %s; allowed is %v", s.at(expr.Pos()), clientOf(expr), mayTouch[s.dir()]))
		}
		return true
	})
	return findings
}

// clientOf returns Nodes or Pods if the expression is a call of a method with that name.
func clientOf(expr ast.Expr) string {
	if call, ok := expr.(*ast.CallExpr); ok {
		if selector, ok := call.Fun.(*ast.SelectorExpr); ok && (selector.Sel.Name == "Nodes" || selector.Sel.Name == "Pods") {
			return selector.Sel.Name
		}
	}
	return ""
}
