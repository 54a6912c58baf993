package zookeeper

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/go-coord/coord/backend"
)

// checkPath is backend.CheckPath with the rules of ZooKeeper.
func checkPath(path string) error {
	if err := backend.CheckPath(path); err != nil {
		return err
	}
	if rule := ownRule(path); rule != "" {
		return &backend.Error{Op: "check", Path: path, Err: badPath(rule)}
	}
	return nil
}

func badPath(rule string) error { return fmt.Errorf("%w: %s", backend.ErrBadPath, rule) }

// ownRule returns the rule of ZooKeeper that a path breaks, or "". The path keeps the rules of
// the contract.
func ownRule(path string) string {
	if path == "/zookeeper" || strings.HasPrefix(path, "/zookeeper/") {
		return "/zookeeper is reserved for ZooKeeper"
	}
	for i := range len(path) {
		if path[i] < 0xef { // not the first byte of a character from U+F000 on
			continue
		}
		switch r, _ := utf8.DecodeRuneInString(path[i:]); {
		case r > 0xffff:
			// Servers check UTF-16, where such a character is two surrogates.
			return fmt.Sprintf("character %U: ZooKeeper refuses everything beyond U+FFFF", r)
		case r >= 0xfff0:
			return fmt.Sprintf("character %U: ZooKeeper refuses U+FFF0 to U+FFFF", r)
		}
	}
	return ""
}
