# Runs a command while it holds a lock of a latchfs server, with Ruby's own library.
# usage: LATCHFS_SERVER=http://box:8080 ruby lock.rb NAME CLIENT COMMAND...
# LATCHFS_CA names the certificate of the server's CA, LATCHFS_TOKEN_FILE the file with a token.
# Exits with the command's code, or with 76 when the lock was lost and the command was stopped.
require 'erb'
require 'json'
require 'net/http'
require 'securerandom'

SERVER = URI(ENV.fetch('LATCHFS_SERVER', 'http://127.0.0.1:8080'))
TLS = { use_ssl: SERVER.scheme == 'https', ca_file: ENV['LATCHFS_CA'] }.freeze
KEY = ENV['LATCHFS_TOKEN_FILE'] && "Bearer #{File.read(ENV['LATCHFS_TOKEN_FILE']).strip}"
HEADERS = { 'Content-Type' => 'application/x-www-form-urlencoded', 'Authorization' => KEY }.compact
TTL = Integer(ENV.fetch('LATCHFS_TTL', '30')) # seconds
WAIT = 240 # seconds in the queue, at most
# Like the server's clock it counts the time in suspend; on a Mac CLOCK_MONOTONIC does.
CLOCK = defined?(Process::CLOCK_BOOTTIME) ? Process::CLOCK_BOOTTIME : Process::CLOCK_MONOTONIC

SessionOver = Class.new(StandardError)

def now = Process.clock_gettime(CLOCK)

def ask(method, path, timeout: TTL / 10.0, **options)
  body = URI.encode_www_form(options) unless options.empty?
  limits = { open_timeout: timeout, read_timeout: timeout, max_retries: 0 }
  answer = Net::HTTP.start(SERVER.host, SERVER.port, **TLS, **limits) do |http|
    http.send_request(method, path, body, HEADERS)
  end
  return JSON.parse(answer.body) if answer.is_a?(Net::HTTPSuccess)

  raise answer.code == '410' ? SessionOver : IOError, JSON.parse(answer.body)['detail']
end

# Expires at the server, with its lock, TTL seconds after the last keep-alive.
class Session
  attr_accessor :id, :token

  def initialize(client)
    @answered = now
    @id = ask('POST', '/sessions', timeout: TTL, client: client, ttl: "#{TTL}s")['session']
    Thread.new { sleep(keep_alive ? TTL / 3.0 : TTL / 10.0) until @over }
  end

  # Leaves 0.3 TTL to stop the command before the session can expire.
  def lost? = @over || now - @answered > 0.7 * TTL

  # Returns false when there was no answer: the next attempt follows soon.
  def keep_alive
    sent, lock = now, token
    ask('POST', "/sessions/#{id}/keepalive")
    @answered = sent
    # The keep-alive's own `lost` names a loss once: a lost answer would hide it.
    @over = lock && ask('GET', "/sessions/#{id}")['held'].none? { |held| held['token'] == lock }
    true
  rescue StandardError => e
    @over = e.is_a?(SessionOver)
  end
end

name, base, program, *words = ARGV
client = "#{base}-#{SecureRandom.hex(4)}" # two programs are two clients
session = Session.new(client)
command, signals = nil, []
begin
  session.token = ask('POST', "/locks/#{ERB::Util.url_encode(name)}", timeout: WAIT + 10,
                      client: client, session: session.id, wait: "#{WAIT}s")['token']
  env = { 'LATCHFS_LOCK' => name, 'LATCHFS_TOKEN' => session.token.to_s }
  %w[INT TERM].each { |signal| trap(signal) { |number| signals << number } }
  until signals.any? || session.lost? || command&.join(0.1)
    command ||= Process.detach(Process.spawn(env, [program, program], *words, pgroup: true))
  end
  ended = command.value unless command.nil? || command.alive?
ensure
  (command&.alive? ? %w[TERM KILL] : []).each do |signal|
    Process.kill(signal, -command.pid) rescue nil # all of its group has ended
    command.join(TTL / 10.0)
  end
  ask('DELETE', "/sessions/#{session.id}") rescue nil # without an answer it expires by itself
end
exit(ended.exitstatus || 128 + ended.termsig) if ended
exit(128 + signals.first) if signals.any?
warn 'the lock is lost: the command was stopped'
exit 76
