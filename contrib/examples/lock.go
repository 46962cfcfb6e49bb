// Runs a command while it holds a lock of a latchfs server, with Go's own library, on Unix.
// usage: go build lock.go; LATCHFS_SERVER=http://box:8080 ./lock NAME CLIENT COMMAND...
// LATCHFS_CA names the certificate of the server's CA, LATCHFS_TOKEN_FILE the file with a token.
// Exits with the command's code, or with 76 when the lock was lost and the command was stopped.
package main

import (
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"log"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

const wait = 4 * time.Minute // in the queue, at most

var ttl = 30 * time.Second
var server = "http://127.0.0.1:8080"
var key string // the Authorization header
var transport = &http.Transport{TLSClientConfig: &tls.Config{}}
var token atomic.Int64 // of the lock, once it is granted

type answer struct {
	Session, Token int64
	Held           []struct{ Token int64 }
	Detail         string
	status         int
}

func ask(method, path string, limit time.Duration) (said answer, err error) {
	request, err := http.NewRequest(method, server+path, nil)
	if err != nil {
		return said, err
	}
	if key != "" {
		request.Header.Set("Authorization", key)
	}
	response, err := (&http.Client{Timeout: limit, Transport: transport}).Do(request)
	if err != nil {
		return said, err
	}
	defer response.Body.Close()
	err = json.NewDecoder(response.Body).Decode(&said)
	if said.status = response.StatusCode; said.status >= 300 {
		err = fmt.Errorf("%s: %s", response.Status, said.Detail)
	}
	return said, err
}

// since counts the time in suspend, as the server does. Go's own clock stands still then, and
// the wall clock may be set back: the longer of the two counts.
func since(start time.Time) time.Duration {
	own, wall := time.Since(start), time.Now().Round(0).Sub(start.Round(0))
	if own > wall {
		return own
	}
	return wall
}

// keepAlive closes lost when the lock is lost, or with 0.3 ttl left to stop the command.
func keepAlive(path string, answered time.Time, lost chan struct{}) {
	defer close(lost)
	for since(answered) < ttl*6/10 {
		time.Sleep(ttl / 30)
		sent, expected := time.Now(), token.Load()
		if since(answered) < ttl/3 {
			continue
		}
		kept, err := ask("POST", path+"/keepalive", ttl/10)
		if kept.status == http.StatusGone {
			return
		} else if err != nil {
			continue
		}
		answered = sent
		// The keep-alive's own `lost` names a loss once: a lost answer would hide it.
		shown, err := ask("GET", path, ttl/10)
		isHeld := expected == 0 || err != nil
		for _, lock := range shown.Held {
			isHeld = isHeld || lock.Token == expected
		}
		if !isHeld {
			return
		}
	}
}

// run returns the exit code of the command, which is stopped early when the lock is lost.
func run(words []string, lost <-chan struct{}) int {
	command := exec.Command(words[0], words[1:]...)
	command.Stdin, command.Stdout, command.Stderr = os.Stdin, os.Stdout, os.Stderr
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	if err := command.Start(); err != nil {
		log.Print(err)
		return 127
	}
	ended, code := make(chan struct{}), 143
	go func() { command.Wait(); close(ended) }()
	select {
	case <-ended:
		return command.ProcessState.ExitCode()
	case <-lost:
		log.Print("the lock is lost: the command is stopped")
		code = 76
	case <-signals:
	}
	syscall.Kill(-command.Process.Pid, syscall.SIGTERM)
	select {
	case <-ended:
	case <-time.After(ttl / 10):
	}
	syscall.Kill(-command.Process.Pid, syscall.SIGKILL)
	<-ended
	return code
}

// configure reads the address of the server, and the files of its CA and of the token.
func configure() {
	if url := os.Getenv("LATCHFS_SERVER"); url != "" {
		server = url
	}
	read := func(name string) []byte {
		text, err := os.ReadFile(os.Getenv(name))
		if err != nil && os.Getenv(name) != "" {
			log.Fatal(err)
		}
		return text
	}
	if ca := read("LATCHFS_CA"); ca != nil {
		transport.TLSClientConfig.RootCAs = x509.NewCertPool()
		transport.TLSClientConfig.RootCAs.AppendCertsFromPEM(ca)
	}
	if token := read("LATCHFS_TOKEN_FILE"); token != nil {
		key = "Bearer " + strings.TrimSpace(string(token))
	}
}

func main() {
	configure()
	if seconds, err := time.ParseDuration(os.Getenv("LATCHFS_TTL") + "s"); err == nil {
		ttl = seconds
	}
	suffix := make([]byte, 4)
	rand.Read(suffix)
	client := url.QueryEscape(fmt.Sprintf("%s-%x", os.Args[2], suffix)) // two programs are two clients
	sent := time.Now()
	opened, err := ask("POST", fmt.Sprintf("/sessions?client=%s&ttl=%s", client, ttl), ttl)
	if err != nil {
		log.Fatal(err)
	}
	path, lost, code := fmt.Sprintf("/sessions/%d", opened.Session), make(chan struct{}), 1
	go keepAlive(path, sent, lost)
	granted, err := ask("POST", fmt.Sprintf("/locks/%s?client=%s&session=%d&wait=%s",
		url.PathEscape(os.Args[1]), client, opened.Session, wait), wait+ttl)
	if err == nil {
		token.Store(granted.Token)
		os.Setenv("LATCHFS_LOCK", os.Args[1])
		os.Setenv("LATCHFS_TOKEN", fmt.Sprint(granted.Token))
		select {
		case <-lost:
			log.Print("the lock is lost: the command was not started")
		default:
			code = run(os.Args[3:], lost)
		}
	} else {
		log.Print(err)
	}
	ask("DELETE", path, ttl/10) // without an answer the session expires by itself
	os.Exit(code)
}
