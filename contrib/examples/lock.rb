# Runs something under a lock of a latchfs server, with Ruby's own library.
# usage: LATCHFS_SERVER=http://box:8080 ruby lock.rb NAME CLIENT
require 'json'
require 'net/http'

SERVER = ENV.fetch('LATCHFS_SERVER', 'http://127.0.0.1:8080')

def ask(kind, name, client, token = nil, **options)
  uri = URI("#{SERVER}/locks/#{URI.encode_www_form_component(name)}")
  request = kind.new(uri)
  request['If-Match'] = "\"#{token}\"" if token
  request.set_form_data({ client: client }.merge(options))
  answer = Net::HTTP.start(uri.host, uri.port, use_ssl: uri.scheme == 'https') { |http| http.request(request) }
  json = JSON.parse(answer.body)
  raise json['detail'] || answer.message unless answer.is_a?(Net::HTTPSuccess)

  json
end

# Holds the lock, and renews it, while the block runs. A renewal that is refused raises there.
def with_lock(name, client, ttl: 30, wait: 30)
  token = ask(Net::HTTP::Post, name, client, ttl: "#{ttl}s", wait: "#{wait}s")['token']
  worker = Thread.current
  keeper = Thread.new do
    # A third of the ttl leaves time for two more attempts.
    loop { sleep ttl / 3.0; ask(Net::HTTP::Patch, name, client, token) }
  rescue RuntimeError => e
    worker.raise(e)
  end
  begin
    yield token
  ensure
    keeper.kill.join
    ask(Net::HTTP::Delete, name, client, token)
  end
end

name, client = ARGV
with_lock(name, client) do |token|
  puts "mine, token #{token}"
  # The work goes here; give the token to what it changes, so that it can refuse older ones.
end
puts 'released'
