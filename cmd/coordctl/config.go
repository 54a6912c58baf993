package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"go.yaml.in/yaml/v3"
)

// config is the config file.
type config struct {
	Context  string              `yaml:"context"` // the one that is used without --context
	Contexts map[string]settings `yaml:"contexts"`
}

// settings are the flags that a context of the config file can set.
type settings struct {
	Servers     list   `yaml:"servers"`
	Backend     string `yaml:"backend"`
	Prefix      string `yaml:"prefix"`
	Schema      string `yaml:"schema"`
	Namespace   string `yaml:"namespace"`
	Timeout     string `yaml:"timeout"`
	Margin      string `yaml:"margin"`
	TLS         string `yaml:"tls"`
	CA          string `yaml:"tls-ca"`
	Cert        string `yaml:"tls-cert"`
	Key         string `yaml:"tls-key"`
	Credentials string `yaml:"credentials"`
}

// list is a list of texts, or one text.
type list []string

func (l *list) UnmarshalYAML(n *yaml.Node) error {
	if n.Kind == yaml.ScalarNode {
		*l = list{n.Value}
		return nil
	}
	return n.Decode((*[]string)(l))
}

// setting is a flag that the environment and the config file can set too.
type setting struct {
	flag, variable, file string
}

// all returns the settings, with the values of a context.
func (s settings) all() []setting {
	return []setting{
		{"servers", "COORD_SERVERS", strings.Join(s.Servers, ",")},
		{"backend", "COORD_BACKEND", s.Backend},
		{"prefix", "COORD_PREFIX", s.Prefix},
		{"schema", "COORD_SCHEMA", s.Schema},
		{"namespace", "COORD_NAMESPACE", s.Namespace},
		{"timeout", "COORD_TIMEOUT", s.Timeout},
		{"margin", "COORD_MARGIN", s.Margin},
		{"tls", "COORD_TLS", s.TLS},
		{"tls-ca", "COORD_TLS_CA", s.CA},
		{"tls-cert", "COORD_TLS_CERT", s.Cert},
		{"tls-key", "COORD_TLS_KEY", s.Key},
		{"credentials", "COORD_CREDENTIALS", s.Credentials},
	}
}

// complete sets the flags that are not given: from the environment, else from the context of
// the config file. A context that --context names precedes the environment. Servers that a
// flag or the environment names are not those of the file: unless --context is given, no
// setting of the file is used then, so that no credentials reach a service that they are not
// for.
func (t *tool) complete() error {
	named := t.flags.Changed("context")
	var s settings
	if !t.memory && (named || !t.flags.Changed("servers") && os.Getenv("COORD_SERVERS") == "") {
		var err error
		if s, err = t.readConfig(named); err != nil {
			return err
		}
	}
	fromFile := make(map[string]bool)
	for _, one := range s.all() {
		if t.flags.Changed(one.flag) {
			continue
		}
		value, origin := os.Getenv(one.variable), one.variable
		if one.file != "" && (named || value == "") {
			value, origin = one.file, "the config file"
			fromFile[one.flag] = true
		}
		if one.flag == "servers" && origin == one.variable {
			t.private = true
		}
		if value == "" || t.memory && one.flag != "timeout" && one.flag != "margin" && one.flag != "namespace" {
			continue
		}
		if err := t.flags.Lookup(one.flag).Value.Set(value); err != nil {
			return usage("%s: %s %q: %w", origin, one.flag, value, err)
		}
	}
	t.digest, t.user = os.Getenv("COORD_DIGEST"), os.Getenv("COORD_USER")
	asked := t.flags.Changed("credentials") || named && fromFile["credentials"]
	if t.credentials != "" && (asked || t.digest == "" && t.user == "") {
		secret, err := readSecret(t.credentials)
		if err != nil {
			return usage("credentials: %w", err)
		}
		t.digest, t.user = secret, secret
	}
	return nil
}

// configPath returns the path of the config file, and whether it was named.
func configPath() (path string, named bool) {
	if path := os.Getenv("COORDCTL_CONFIG"); path != "" {
		return path, true
	}
	dir, err := os.UserConfigDir()
	if err != nil {
		return "", false
	}
	return filepath.Join(dir, "coordctl", "config.yaml"), false
}

// readConfig returns the context of the config file. Without a file there is none.
func (t *tool) readConfig(named bool) (s settings, err error) {
	path, must := configPath()
	data, err := os.ReadFile(path)
	switch {
	case path == "", errors.Is(err, fs.ErrNotExist) && !must:
		if named {
			return s, usage("--context %s: there is no config file %s", t.context, path)
		}
		return s, nil
	case err != nil:
		return s, usage("config file: %w", err)
	}
	var c config
	d := yaml.NewDecoder(bytes.NewReader(data))
	d.KnownFields(true)
	if err := d.Decode(&c); err != nil && !errors.Is(err, io.EOF) {
		return s, usage("config file %s: %w", path, err)
	}
	name := c.Context
	if v := os.Getenv("COORD_CONTEXT"); v != "" {
		name = v
	}
	if named {
		name = t.context
	}
	if name == "" {
		return s, nil
	}
	s, ok := c.Contexts[name]
	if !ok {
		return s, usage("config file %s: there is no context %q", path, name)
	}
	for _, file := range []*string{&s.CA, &s.Cert, &s.Key, &s.Credentials} {
		if *file != "" && !filepath.IsAbs(*file) {
			*file = filepath.Join(filepath.Dir(path), *file)
		}
	}
	return s, nil
}

// readSecret reads a file that only its owner can read.
func readSecret(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	if info.Mode().Perm()&0o077 != 0 {
		return "", fmt.Errorf("%s: others can read it (mode %04o); run chmod 600", path, info.Mode().Perm())
	}
	data, err := io.ReadAll(io.LimitReader(f, 4096))
	if err != nil {
		return "", err
	}
	secret := strings.TrimRight(string(data), "\r\n")
	if !strings.Contains(secret, ":") || strings.ContainsAny(secret, "\r\n") {
		return "", fmt.Errorf("%s: want one line, user:password", path)
	}
	return secret, nil
}

// configHelp is the help about the config file and the environment.
const configHelp = `Servers, TLS and credentials come from flags, the environment, or a context of the config file.

The config file is $COORDCTL_CONFIG, or coordctl/config.yaml in $XDG_CONFIG_HOME (by default
~/.config). For example

  context: staging              # the one that is used without --context
  contexts:
    staging:
      servers: [zk1:2181, zk2:2181, zk3:2181]
      namespace: /orders
    production:
      servers: [etcd1:2379, etcd2:2379, etcd3:2379]
      backend: etcd
      prefix: orders
      tls: true
      tls-ca: ca.pem            # beside the config file
      credentials: production.secret

A context can set servers, backend, prefix, schema, namespace, timeout, margin, tls, tls-ca,
tls-cert, tls-key and credentials. They mean what the flags of these names mean. Files are relative
to the config file.

In the environment: COORD_SERVERS, COORD_BACKEND, COORD_PREFIX, COORD_SCHEMA, COORD_NAMESPACE,
COORD_TIMEOUT, COORD_MARGIN, COORD_TLS, COORD_TLS_CA, COORD_TLS_CERT, COORD_TLS_KEY,
COORD_CREDENTIALS, and COORD_CONTEXT, the name of a context.

For PostgreSQL the servers are a list of host:port, or a connection string: a URL, or keywords and
values. What it does not say comes from PGHOST, PGDATABASE, PGUSER and the other variables of psql,
from PGSERVICE, and the password also from PGPASSFILE or ~/.pgpass. With --backend postgres and no
servers at all these variables name them. --tls and the flags that begin so verify the server's
certificate and name, whatever sslmode is. For example

      servers: postgres://orders@db1:5432,db2:5432/orders
      backend: postgres
      schema: coord
      credentials: orders.secret

A flag precedes the environment, which precedes the context. But a context that --context names
precedes the environment. If --servers or COORD_SERVERS names the servers, and --context is not
given, the config file is not used at all: its credentials are for other servers.

Credentials are the line "user:password" of a file that only its owner can read (mode 0600), for
ZooKeeper's digest scheme, or a user of etcd or PostgreSQL. They can also be the value of
COORD_DIGEST for ZooKeeper, or of COORD_USER for etcd and PostgreSQL. There is no flag for them,
since all users of a machine can read flags; for the same reason a connection string with a password
is refused as a flag and in the config file. COORD_SERVERS can have one. The command of lock and
elect inherits the environment.`
