package layout

import "strings"

// A Namespace is the path below which the paths of a client are, or "". It maps the paths of the
// client to those of the service and back, also "/".
type Namespace string

// Place returns the full path of a path of a client, and the client's namespace. The function is the
// client's FullPath, which refuses "/" because no recipe can be there.
func Place(fullPath func(path string) (string, error), path string) (full string, ns Namespace, err error) {
	const any = "/any"
	given := path
	if path == "/" {
		given = any
	}
	if full, err = fullPath(given); err != nil {
		return "", "", err
	}
	ns = Namespace(strings.TrimSuffix(full, given))
	return ns.Full(path), ns, nil
}

// Full returns the path of the service for a path of the client.
func (ns Namespace) Full(path string) string {
	if path == "/" && ns != "" {
		return string(ns)
	}
	return string(ns) + path
}

// Rel returns the path of the client for a path of the service. One outside of the namespace stays as
// it is.
func (ns Namespace) Rel(full string) string {
	if full == string(ns) {
		return "/"
	}
	if rest, ok := strings.CutPrefix(full, string(ns)); ok && strings.HasPrefix(rest, "/") {
		return rest
	}
	return full
}
